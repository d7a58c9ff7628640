//! `met nodes`.

use std::io::Write;

use anyhow::{Result, bail};

use crate::cli::NodesArgs;
use crate::output;
use crate::view::nodes as view;
use met_config::Failure;
use met_query::jobs::{self, Answers};
use met_query::protocol::{Reply, Request};
use met_query::setting::Setting;

pub fn nodes(setting: &Setting, args: &NodesArgs) -> Result<i32> {
    let Some(mut server) = setting.server_client()? else {
        return Err(Failure::usage("no server given; use --server URL or set MET_SERVER"));
    };
    let Reply::Nodes(nodes) = server.call(&Request::Nodes)? else { bail!("no reply from the server") };
    let mut stdout = output::stdout();
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string(&nodes)?),
        false => view::list(&nodes, jobs::now_ns(), &stdout.style()),
    };
    stdout.write_all(text.as_bytes())?;
    Ok(0)
}
