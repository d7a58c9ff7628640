//! The name in a header of a reverse proxy. On loopback every local user could send it, so the proxy has to prove
//! itself: by its uid on a Unix socket, or by a secret.

use axum::http::{HeaderMap, HeaderName};

use super::is_person_name;
use super::random::is_same;
use crate::listener::Peer;

pub const SECRET_HEADER: &str = "x-met-proxy-secret";
pub const SECRET_LETTERS_MIN: usize = 16;

#[derive(Debug)]
pub struct TrustedProxy {
    pub header: HeaderName,
    pub uid: Option<u32>,
    pub secret: Option<String>,
}

/// What a request says of a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// No trusted proxy sent it, or it names no user.
    Nobody,
    Person(String),
    /// By a trusted proxy, in a way that may mean another person.
    Unclear,
}

impl TrustedProxy {
    pub(super) fn person(&self, peer: &Peer, headers: &HeaderMap) -> Named {
        if !self.is_trusted(peer, headers) {
            return Named::Nobody;
        }
        let mut names = headers.get_all(&self.header).into_iter();
        match (names.next(), names.next()) {
            (None, _) => Named::Nobody,
            (Some(name), None) => match name.to_str() {
                Ok(name) if is_person_name(name) => Named::Person(name.to_owned()),
                _ => Named::Unclear,
            },
            // One of them may be the client's own.
            (Some(_), Some(_)) => Named::Unclear,
        }
    }

    pub(super) fn is_trusted(&self, peer: &Peer, headers: &HeaderMap) -> bool {
        if self.uid.is_some() && peer.uid == self.uid {
            return true;
        }
        let mut given = headers.get_all(SECRET_HEADER).into_iter();
        let given = given.next().and_then(|value| value.to_str().ok());
        self.secret.as_ref().zip(given).is_some_and(|(secret, given)| {
            // An empty one would be known to all clients.
            secret.len() >= SECRET_LETTERS_MIN && is_same(secret, given)
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in pairs {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn proxy(uid: Option<u32>, secret: Option<&str>) -> TrustedProxy {
        let header = HeaderName::from_static("x-grafana-user");
        TrustedProxy { header, uid, secret: secret.map(str::to_owned) }
    }

    #[test]
    fn a_name_counts_only_from_the_proxy() {
        let tcp = Peer::at(([127, 0, 0, 1], 1).into());
        let local = |uid| Peer { uid: Some(uid), ..tcp.clone() };
        let ada = headers(&[("x-grafana-user", "ada")]);
        let person = || Named::Person("ada".to_owned());
        assert_eq!(proxy(Some(33), None).person(&local(33), &ada), person());
        assert_eq!(proxy(Some(33), None).person(&local(34), &ada), Named::Nobody);
        assert_eq!(proxy(Some(33), None).person(&tcp, &ada), Named::Nobody);
        assert_eq!(proxy(None, None).person(&tcp, &ada), Named::Nobody);
        let with = |secret| headers(&[("x-grafana-user", "ada"), (SECRET_HEADER, secret)]);
        let shared = proxy(None, Some("0123456789abcdef"));
        assert_eq!(shared.person(&tcp, &with("0123456789abcdef")), person());
        assert_eq!(shared.person(&tcp, &with("0123456789abcdeg")), Named::Nobody);
        assert_eq!(shared.person(&tcp, &with("")), Named::Nobody);
        assert_eq!(proxy(None, Some("")).person(&tcp, &with("")), Named::Nobody, "an empty secret is none");
    }

    #[test]
    fn two_names_or_a_strange_one_are_nobodys() {
        let peer = Peer { uid: Some(33), ..Peer::at(([127, 0, 0, 1], 1).into()) };
        let proxy = proxy(Some(33), None);
        let two = headers(&[("x-grafana-user", "ada"), ("x-grafana-user", "bob")]);
        for unclear in [two, headers(&[("x-grafana-user", "")]), headers(&[("x-grafana-user", " ada")])] {
            assert_eq!(proxy.person(&peer, &unclear), Named::Unclear, "{unclear:?}");
        }
        assert_eq!(proxy.person(&peer, &HeaderMap::new()), Named::Nobody);
    }
}
