//! Links the program so that it starts quickly and is small: docs/decisions/057-fixed-address.md has the reasons.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let Some(folder) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    if target("OS") != "linux" || target("ENV") != "gnu" {
        return;
    }
    let mut arguments = vec!["-no-pie".to_owned()];
    // Not every linker can: functions with the same code become one.
    arguments
        .extend(["-Wl,--icf=all".to_owned()].into_iter().filter(|argument| links_with(&folder, argument)));
    arguments.extend(static_unwinder(&folder));
    for argument in arguments {
        println!("cargo::rustc-link-arg-bin=met={argument}");
    }
}

/// The standard library asks for `libgcc_s` by name. A script of that name, found first, names an archive of the
/// same code. `None` where the compiler of this machine does not build for it, or has no such archive.
fn static_unwinder(folder: &Path) -> Option<String> {
    if env::var_os("HOST") != env::var_os("TARGET") {
        return None;
    }
    let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let found = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let archive = String::from_utf8(found.stdout).ok()?.trim().to_owned();
    // A name without a folder means that there is none; a space would end the path in the script.
    if !Path::new(&archive).is_absolute() || archive.contains(' ') {
        return None;
    }
    println!("cargo::rerun-if-changed={archive}");
    std::fs::write(folder.join("libgcc_s.so"), format!("GROUP ( {archive} -lgcc )\n")).ok()?;
    Some(format!("-L{}", folder.display())).filter(|argument| links_with(folder, argument))
}

/// Whether the linker that will be used takes this argument.
fn links_with(folder: &Path, argument: &str) -> bool {
    let source = folder.join("probe.rs");
    let (Some(rustc), Some(target)) = (env::var_os("RUSTC"), env::var_os("TARGET")) else { return false };
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut link = Command::new(rustc);
    link.arg("--target").arg(target).args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    link.args(env::var("RUSTC_LINKER").map(|linker| format!("-Clinker={linker}")));
    link.arg(format!("-Clink-arg={argument}")).arg("-o").arg(folder.join("probe")).arg(&source);
    std::fs::write(&source, "fn main() {}").is_ok()
        && link.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
