//! The asking end of a server, over HTTP.

use std::io;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use met_sinks::link::{self, Address, Link};

use crate::jobs::Answers;
use crate::protocol::{Reply, Request};
use met_config::Failure;

const ALLOW_PLAIN: &str = "client.plain: yes in met.yaml";
const ASK: &str = "/api/v1/ask";
const ANSWER_BYTES_MAX: u64 = 256 << 20;

pub struct ServerClient {
    link: Link,
    token_file: Option<PathBuf>,
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
        let usage = |error: link::BadAddress| Failure::usage(error.message(ALLOW_PLAIN));
        let token = asked.token_file.as_deref().map(link::token_of).transpose();
        let token = token.map_err(|error| Failure::usage(format!("no token for {}: {error}", asked.url)))?;
        let address = Address {
            url: asked.url.clone(),
            token,
            authority: asked.ca_file.clone(),
            plain: asked.plain,
            ..Address::default()
        };
        Ok(ServerClient { link: Link::open(&address).map_err(usage)?, token_file: asked.token_file.clone() })
    }
}

impl ServerClient {
    /// What the caller gave and the server does not take is for the caller to change.
    fn refused(&self, answer: &link::Answer) -> anyhow::Error {
        let url = self.link.url();
        match (answer.status, &self.token_file) {
            (401, None) => Failure::usage(format!(
                "{url} requires a token: one line in {} (chmod 600), printed by `met server enroll --user \
                 NAME` there",
                own_token().map_or("~/.config/met/token".to_owned(), |path| path.display().to_string())
            )),
            (401, Some(path)) => Failure::usage(format!(
                "{url} does not know the token in {}; `met server enroll --user NAME` prints a new one there",
                path.display()
            )),
            (403, _) => Failure::usage(format!("{url} refuses: {}", reason(answer))),
            (404 | 405, _) => Failure::usage(format!(
                "{url} is not a met server ({}); check address and port",
                answer.status
            )),
            (status, _) => anyhow!("{url} answers {status}: {}; see its log", reason(answer)),
        }
    }
}

/// The default place of a person's token.
pub fn own_token() -> Option<PathBuf> {
    met_config::user_folder().map(|folder| folder.join("token"))
}

/// What to do where the certificate of a server is not trusted.
const TRUST: &str = "give its CA certificate in met.yaml: client.ca_file";

/// Why an address did not answer, and what to check. `trust`: how to name a CA certificate.
pub fn unreachable(url: &str, error: &io::Error, trust: &str) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::ConnectionRefused => "is `met server` running there, on this port?",
        io::ErrorKind::InvalidData if error.to_string().contains("certificate") => trust,
        // What to do is said already.
        io::ErrorKind::InvalidInput => {
            return Failure::usage(format!("cannot reach the server {url}: {error}"));
        }
        _ => "check the address and the network",
    };
    Failure::usage(format!("cannot reach the server {url}: {error}; {advice}"))
}

impl Answers for ServerClient {
    fn call(&mut self, request: &Request) -> Result<Reply> {
        let question = serde_json::to_vec(request)?;
        let answer =
            self.link.post(ASK, &[("Content-Type", "application/json")], &question, ANSWER_BYTES_MAX);
        let answer = answer.map_err(|error| unreachable(self.link.url(), &error, TRUST))?;
        if answer.status != 200 {
            return Err(self.refused(&answer));
        }
        match serde_json::from_slice::<Reply>(&answer.body) {
            Ok(reply) => Ok(reply.accepted()?),
            Err(error) => {
                let url = self.link.url();
                bail!("cannot parse the reply of {url} ({error}); is it a met server of this version?")
            }
        }
    }

    fn what(&self) -> &'static str {
        "the server"
    }
}

/// What the server gives as reason, else what it sent.
fn reason(answer: &link::Answer) -> String {
    let body: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    let error = body.as_ref().and_then(|body| body["error"].as_str()).map(str::to_owned);
    error.unwrap_or_else(|| answer.reason())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn refusal(status: u16, token_file: Option<&str>) -> (i32, String) {
        let asked = Asked { url: "http://127.0.0.1:9".to_owned(), ..Asked::default() };
        let mut client = ServerClient::open(&asked).unwrap();
        client.token_file = token_file.map(PathBuf::from);
        let answer = link::Answer { status, retry_after: None, body: br#"{"error":"why"}"#.to_vec() };
        let error = client.refused(&answer);
        (error.downcast_ref::<Failure>().map_or(1, |failure| failure.code), error.to_string())
    }

    #[test]
    fn what_the_caller_can_change_is_bad_input_and_what_he_cannot_is_not() {
        let (code, words) = refusal(401, Some("/home/a/token"));
        assert_eq!(code, 2);
        assert!(
            words.contains("the token in /home/a/token") && words.contains("met server enroll"),
            "{words}"
        );
        let wanted = refusal(401, None).1;
        let own = own_token().map_or("~/.config/met/token".to_owned(), |path| path.display().to_string());
        assert!(wanted.contains("requires a token: one line in ") && wanted.contains(&own), "{wanted}");
        assert_eq!(refusal(404, None).0, 2);
        assert_eq!(refusal(503, None), (1, "http://127.0.0.1:9 answers 503: why; see its log".to_owned()));
    }

    /// What a call says where a server replies this.
    fn answered(reply: &Reply) -> anyhow::Error {
        let body = serde_json::to_string(reply).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // To the end of the request, which is that of its JSON.
            let mut asked = Vec::new();
            while !asked.ends_with(b"\"status\"") {
                let mut piece = [0; 1024];
                match stream.read(&mut piece).unwrap() {
                    0 => break,
                    count => asked.extend(&piece[..count]),
                }
            }
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
        });
        let mut client = ServerClient::open(&Asked { url, ..Asked::default() }).unwrap();
        let error = client.call(&Request::Status).unwrap_err();
        server.join().unwrap();
        error
    }

    #[test]
    fn only_wrong_input_that_a_server_refuses_is_wrong_input() {
        for (error, code) in [(Failure::usage("no such node"), 2), (anyhow!("disk full"), 1)] {
            let refused = answered(&Reply::refusal(&error));
            assert_eq!(refused.downcast_ref::<Failure>().map(|failure| failure.code), Some(code));
            assert_eq!(refused.to_string(), error.to_string());
        }
    }

    #[test]
    fn an_address_without_an_answer_is_reported_with_what_to_check() {
        let error = unreachable("http://n1:1", &io::ErrorKind::ConnectionRefused.into(), TRUST);
        assert_eq!(error.downcast_ref::<Failure>().unwrap().code, 2);
        let words = "cannot reach the server http://n1:1: connection refused; is `met server` running there, on this port?";
        assert_eq!(error.to_string(), words);
        let error =
            unreachable("http://n1:1", &io::Error::new(io::ErrorKind::InvalidInput, "write https://"), TRUST);
        assert_eq!(error.to_string(), "cannot reach the server http://n1:1: write https://");
    }

    #[test]
    fn the_error_says_how_to_allow_plain_http() {
        let asked = Asked { url: "http://10.0.0.1:9".to_owned(), ..Asked::default() };
        let words = ServerClient::open(&asked).err().expect("it is not allowed").to_string();
        assert!(words.contains("client.plain: yes") && !words.contains("--plain"), "{words}");
    }
}
