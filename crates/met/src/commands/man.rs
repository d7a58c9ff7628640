//! `met man`: manual pages made from the definitions of the command line.

use std::io;
use std::path::Path;

use anyhow::Result;
use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use met_config::Failure;

pub fn man(args: &ManArgs) -> Result<i32> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let written = std::fs::create_dir_all(&args.folder).and_then(|()| write(&cli, &args.folder));
    written.map_err(|error| {
        Failure::usage(format!("cannot write into {}: {error}; choose another folder", args.folder.display()))
    })?;
    Ok(0)
}

fn write(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write(below, folder)?;
    }
    let (name, page) = page(command)?;
    std::fs::write(folder.join(name), page)
}

/// The name of a page, and its text. What follows the options in the help are examples.
fn page(command: &clap::Command) -> io::Result<(String, String)> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    Ok((
        man.get_filename(),
        page.replace(".SH EXTRA\nExample:\n", ".SH EXAMPLES\n").replace(".SH EXTRA", ".SH EXAMPLES"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_called_so() {
        let folder = tempfile::tempdir().unwrap();
        man(&ManArgs { folder: folder.path().to_owned() }).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        for name in ["met.1", "met-run.1", "met-emissions-set.1"] {
            assert!(!read(name).contains("EXTRA"), "{name}: {}", read(name));
        }
        assert!(read("met-run.1").contains(".SH EXAMPLES\n"), "{}", read("met-run.1"));
    }
}
