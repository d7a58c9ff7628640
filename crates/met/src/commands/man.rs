//! `met man`: manual pages made from the definitions of the command line.

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::{Cli, ManArgs};
use met_config::Failure;

pub fn man(args: &ManArgs) -> Result<i32> {
    let made = std::fs::create_dir_all(&args.folder);
    let written = made.and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder));
    written.map_err(|error| {
        Failure::usage(format!("cannot write into {}: {error}; choose another folder", args.folder.display()))
    })?;
    Ok(0)
}
