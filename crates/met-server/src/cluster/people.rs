//! Who may ask a server: the holders of tokens, and people who proved their name in another way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use met_query::viewer::Viewer;
use met_store::StoreError;
use met_store::cluster::{Log, TokenOwner};
use met_web::api::Admitted;
use met_web::login::{Directory, Person, Proof};
use met_web::problem::Problem;

use super::access;
use super::accounts::Accounts;

pub struct People {
    /// To look up tokens; the writer has one of its own.
    log: Mutex<Log>,
    /// Who see all jobs, by a name that is not a token's.
    operators: Vec<String>,
    accounts: Arc<Accounts>,
}

impl People {
    pub fn new(log: Log, operators: Vec<String>, accounts: Arc<Accounts>) -> People {
        People { log: Mutex::new(log), operators, accounts }
    }

    /// The tokens as they are now.
    pub(super) fn log(&self) -> Result<MutexGuard<'_, Log>, Problem> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.refresh().map_err(failed)?;
        Ok(log)
    }

    pub(super) fn token(&self, token: &str) -> Result<Option<TokenOwner>, Problem> {
        access::owner_of(&*self.log()?, token).map_err(failed)
    }

    pub(super) fn is_node(&self, name: &str) -> Result<bool, Problem> {
        self.log()?.is_node(name).map_err(failed)
    }

    /// Whom a password, a proxy or a provider names.
    pub(super) fn named(&self, name: &str) -> TokenOwner {
        match self.operators.iter().any(|operator| operator == name) {
            true => TokenOwner::Operator(name.to_owned()),
            false => TokenOwner::User(name.to_owned()),
        }
    }

    pub(super) fn admit(&self, owner: &TokenOwner) -> Result<Admitted, Problem> {
        match owner {
            TokenOwner::User(name) => {
                let viewer = Viewer::User { name: name.clone(), accounts: self.accounts.of(name) };
                Ok(Admitted { viewer, ..Admitted::user(name) })
            }
            TokenOwner::Operator(name) => Ok(Admitted::operator(name)),
            TokenOwner::Node(_) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this is a node's token; met server enroll --user prints one for queries",
            )),
        }
    }
}

fn failed(error: StoreError) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, error)
}

impl Directory for People {
    fn by_token(&self, token: &str) -> Result<Option<Person>, Problem> {
        let owner = self.token(token)?;
        let proof = Proof::Token(access::hash(token));
        Ok(owner.map(|owner| Person { name: owner.name().to_owned(), proof }))
    }

    fn admit(&self, person: &Person) -> Result<Admitted, Problem> {
        let owner = match &person.proof {
            Proof::Token(hash) => {
                let revoked =
                    || Problem::new(StatusCode::UNAUTHORIZED, "the token of this login was revoked");
                self.log()?.owner(hash).map_err(failed)?.ok_or_else(revoked)?
            }
            Proof::Password(_) | Proof::Proxy | Proof::Provider => self.named(&person.name),
        };
        People::admit(self, &owner)
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn needed(&self) -> &'static str {
        "authentication required: a token, a password or a login"
    }
}
