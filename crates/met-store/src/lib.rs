//! met-store
