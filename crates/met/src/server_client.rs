//! The asking end of a server, over HTTP.

use std::io;
use std::path::PathBuf;

use anyhow::Result;
use met_sinks::forward::link::{self, Address, Link};

use crate::failure::Failure;
use crate::jobs::Answers;
use crate::protocol::{Reply, Request};

const ASK: &str = "/api/v1/ask";
const ANSWER_BYTES_MAX: u64 = 256 << 20;

pub struct ServerClient {
    link: Link,
    has_token: bool,
}

/// How a person reaches a server: its address, and files for the rest.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub url: String,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub plain: bool,
}

impl ServerClient {
    pub fn open(asked: &Asked) -> Result<ServerClient> {
        let usage = |error: link::BadAddress| Failure::usage(error.to_string());
        let token = asked.token_file.as_deref().map(link::token_of).transpose().map_err(usage)?;
        let has_token = token.is_some();
        let address = Address {
            url: asked.url.clone(),
            token,
            authority: asked.ca_file.clone(),
            certificate: None,
            plain: asked.plain,
        };
        Ok(ServerClient { link: Link::open(&address).map_err(usage)?, has_token })
    }
}

impl Answers for ServerClient {
    fn call(&mut self, request: &Request) -> io::Result<Reply> {
        let question = serde_json::to_vec(request)?;
        let answer =
            self.link.post(ASK, &[("Content-Type", "application/json")], &question, ANSWER_BYTES_MAX);
        let answer = answer.map_err(|error| io::Error::other(format!("{}: {error}", self.link.url())))?;
        match answer.status {
            200 => Ok(serde_json::from_slice(&answer.body)?),
            401 if !self.has_token => Err(io::Error::other(format!(
                "{} wants a token: one line in ~/.config/met/token (chmod 600), which `met server enroll --user NAME` prints there",
                self.link.url()
            ))),
            401 if answer.body.is_empty() => Err(io::ErrorKind::PermissionDenied.into()),
            status => {
                Err(io::Error::other(format!("{} answers {status}: {}", self.link.url(), reason(&answer))))
            }
        }
    }

    fn what(&self) -> &'static str {
        "the server"
    }
}

/// What the server gives as reason, else what it sent.
fn reason(answer: &link::Answer) -> String {
    let told: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    let told = told.as_ref().and_then(|told| told["error"].as_str()).map(str::to_owned);
    told.unwrap_or_else(|| answer.reason())
}
