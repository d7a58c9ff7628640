//! `met who`: who uses this machine now, by user and process, inside jobs and outside.

use std::io::Write;

use anyhow::Result;

use crate::cli::WhoArgs;
use crate::output;
use crate::view;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;
use met_query::viewer::Viewer;
use met_query::who;

pub fn who(setting: &Setting, args: &WhoArgs) -> Result<i32> {
    let jobs = AllJobs::open(setting)?.jobs(&who::running())?;
    // What the kernel shows to the caller.
    let in_use = who::look(&setting.host, &Viewer::Everything, &jobs);
    let mut stdout = output::stdout();
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string(&in_use)?),
        false => view::who::text(&in_use, setting.host.facts().cpu_count, &stdout.style()),
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}
