//! `met man`, `met completions` and `met config`: references made from the definitions themselves.

use std::io::Write;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::config::Config;
use crate::output;

pub fn man(args: &ManArgs) -> Result<i32> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot create {}", args.folder.display()))?;
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .with_context(|| format!("cannot write to {}", args.folder.display()))?;
    Ok(0)
}

pub fn completions(args: &CompletionsArgs) -> Result<i32> {
    // Written by it directly, an error of standard output would be a panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "met", &mut script);
    output::stdout().write_all(&script)?;
    Ok(0)
}

pub fn config() -> Result<i32> {
    output::stdout().write_all(Config::reference().as_bytes())?;
    Ok(0)
}
