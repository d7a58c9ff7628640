use std::path::PathBuf;

/// Of this process alone; it stays, because the process ends whenever the fuzzer does.
pub fn folder() -> PathBuf {
    let root = std::env::temp_dir().join(format!("met-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a folder for the targets");
    root
}
