//! met-insight
