//! The clock that sinks read.

use std::time::SystemTime;

/// Unix nanoseconds.
pub(crate) fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
