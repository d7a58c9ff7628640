//! `met token`: the caller's own token, for the login page of a server.

use std::io::Write;

use anyhow::Result;
use met_config::Failure;
use met_query::server_client::own_token;
use met_query::setting::Setting;
use met_sinks::link;

use crate::output;

pub fn token(setting: &Setting) -> Result<i32> {
    let path = setting.config.client.token_file.clone().or_else(own_token);
    let ask = "ask the operator of the server for one: met server enroll --user NAME";
    let Some(path) = path else {
        return Err(Failure::usage(format!("no token: there is no home folder; {ask}")));
    };
    if !path.exists() {
        let place = path.display();
        return Err(Failure::usage(format!("no token in {place}; {ask}, and store it there (chmod 600)")));
    }
    let token = link::token_of(&path).map_err(|error| Failure::usage(error.to_string()))?;
    writeln!(output::stdout(), "{token}")?;
    Ok(0)
}
