//! `met man` and `met completions`: references made from the definitions themselves.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::output;
use met_config::Failure;

pub fn man(args: &ManArgs) -> Result<i32> {
    let made = std::fs::create_dir_all(&args.folder);
    let written = made.and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder));
    written.map_err(|error| {
        Failure::usage(format!("cannot write into {}: {error}; choose another folder", args.folder.display()))
    })?;
    Ok(0)
}

pub fn completions(args: &CompletionsArgs) -> Result<i32> {
    // Written by it directly, an error of standard output would be a panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "met", &mut script);
    output::stdout().write_all(&script)?;
    Ok(0)
}
