//! met-host
