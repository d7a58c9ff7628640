//! Links the program so that it starts quickly: at a fixed address (docs/decisions/057-fixed-address.md), and without a shared
//! library that only unwinding needs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    if target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    println!("cargo::rustc-link-arg-bin=met=-no-pie");
    if let (Some(archive), Some(folder)) = (unwinder(), std::env::var_os("OUT_DIR").map(PathBuf::from)) {
        // The standard library asks for libgcc_s by name. Found first, this stands for the same code as an archive.
        let script = format!("GROUP ( {} -lgcc )\n", archive.display());
        if std::fs::write(folder.join("libgcc_s.so"), script).is_ok() {
            println!("cargo::rustc-link-arg-bin=met=-L{}", folder.display());
        }
    }
}

/// The unwinder as an archive, where the compiler of this machine builds for this machine and has it.
fn unwinder() -> Option<PathBuf> {
    if std::env::var("HOST").ok()? != std::env::var("TARGET").ok()? {
        return None;
    }
    let found = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    // A name without a folder means that there is none; a space would end the path in the script.
    (path.is_absolute() && Path::exists(&path) && !path.to_string_lossy().contains(' ')).then_some(path)
}
