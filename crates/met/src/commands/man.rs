//! `met man` and `met config`: references made from the definitions themselves.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::{Cli, ManArgs};
use crate::output;
use crate::view::manual;
use met_config::Config;
use met_config::Failure;

pub fn man(args: &ManArgs) -> Result<i32> {
    let made = std::fs::create_dir_all(&args.folder);
    let written = made.and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder));
    written.map_err(|error| {
        Failure::usage(format!("cannot write into {}: {error}; choose another folder", args.folder.display()))
    })?;
    Ok(0)
}

pub fn config() -> Result<i32> {
    let mut stdout = output::stdout();
    let reference = Config::reference();
    // A file gets Markdown, which is what docs/config.md is.
    let text = if stdout.is_terminal() { manual::page(&reference, &stdout.style()) } else { reference };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}
