//! met-sources
