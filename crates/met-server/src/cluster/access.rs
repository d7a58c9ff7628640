//! Tokens: made here once, shown once, and kept as something that proves them and is none.

use std::io;

use met_store::StoreError;
use met_store::cluster::{Log, TokenOwner};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

const TOKEN_BYTES: usize = 32;

/// Grants access and returns the token, which cannot be recovered later. `replace`: see [`Log::enroll`].
pub fn enroll(log: &mut Log, owner: &TokenOwner, now_ns: i64, replace: bool) -> Result<String, StoreError> {
    let token = token().map_err(|error| StoreError::Io { path: "/dev/urandom".into(), error })?;
    log.enroll(owner, &hash(&token), now_ns, replace)?;
    Ok(token)
}

/// Whose token this is.
pub fn owner_of(log: &Log, token: &str) -> Result<Option<TokenOwner>, StoreError> {
    log.owner(&hash(token))
}

/// A token has enough entropy to make guessing hopeless, so a fast hash is enough.
pub(super) fn hash(token: &str) -> Vec<u8> {
    digest(&SHA256, token.as_bytes()).as_ref().to_vec()
}

fn token() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Names of nodes end up in labels, files and lists.
pub fn is_node_name(name: &str) -> bool {
    let proper = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=253).contains(&name.len()) && name.bytes().all(proper) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_and_cannot_be_read_back() {
        let state = tempfile::tempdir().unwrap();
        let mut log = Log::open(state.path()).unwrap();
        let ada = TokenOwner::User("ada".into());
        let token = enroll(&mut log, &ada, 1, false).unwrap();
        assert_eq!(owner_of(&log, &token).unwrap(), Some(ada.clone()));
        assert_eq!(owner_of(&log, "").unwrap(), None);
        assert_ne!(enroll(&mut log, &ada, 2, false).unwrap(), token);
        drop(log);
        for entry in std::fs::read_dir(state.path()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(token.len()).any(|window| window == token.as_bytes()));
        }
    }

    #[test]
    fn names_of_nodes_are_plain() {
        assert!(is_node_name("n1") && is_node_name("gpu-07.cluster_a.example"));
        for bad in ["", ".", "-n", "a/b", "a b", "a\n", "ä", "../x"] {
            assert!(!is_node_name(bad), "{bad:?}");
        }
    }
}
