//! The client: its address, and its proven identity.

use std::net::SocketAddr;

use rustls::pki_types::{CertificateDer, DnsName};
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{Decode, Tag, TagNumber, Tagged};
use x509_cert::name::Name;

use super::open_connections::ConnectionState;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ALTERNATIVE_NAMES: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
/// An alternative name that is a DNS name.
const DNS_NAME: Tag = Tag::ContextSpecific { constructed: false, number: TagNumber::N2 };
/// Strings whose bytes are UTF-8 or ASCII.
const TEXTS: [Tag; 3] = [Tag::Utf8String, Tag::PrintableString, Tag::Ia5String];

/// An extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub address: SocketAddr,
    /// Named with the right password.
    pub user: Option<String>,
    /// The fingerprint of that password: a later one is another.
    pub password: Option<Vec<u8>>,
    /// Of the client, checked against the authority that the file names.
    pub certificate: Option<Certificate>,
    /// Of the process at the other end of a Unix socket, by the kernel.
    pub uid: Option<u32>,
    pub is_tls: bool,
    /// Of its connection.
    pub connection: ConnectionState,
}

impl Peer {
    /// A client of which nothing but its address is known.
    pub fn at(address: SocketAddr) -> Peer {
        Peer {
            address,
            user: None,
            password: None,
            certificate: None,
            uid: None,
            is_tls: false,
            connection: ConnectionState::default(),
        }
    }

    /// Whether it is authenticated.
    pub fn is_known(&self) -> bool {
        self.user.is_some() || self.certificate.is_some()
    }
}

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    pub common_name: Option<String>,
    pub dns_names: Vec<String>,
}

impl Certificate {
    /// A certificate that does not parse, or has its alternative names twice, identifies no one.
    pub(super) fn read(der: &CertificateDer<'_>) -> Option<Certificate> {
        let certificate = x509_cert::Certificate::from_der(der).ok()?.tbs_certificate;
        let extensions = certificate.extensions.unwrap_or_default();
        let mut alternative = extensions.iter().filter(|extension| extension.extn_id == ALTERNATIVE_NAMES);
        let names = match (alternative.next(), alternative.next()) {
            (None, _) => Vec::new(),
            (Some(names), None) => Vec::<Any>::from_der(names.extn_value.as_bytes()).ok()?,
            (Some(_), Some(_)) => return None,
        };
        let dns_names = names.iter().filter(|name| name.tag() == DNS_NAME).filter_map(text);
        let dns_names = dns_names.filter(|name| is_dns_name(name)).map(str::to_owned).collect();
        Some(Certificate { common_name: common_name(&certificate.subject), dns_names })
    }

    /// Whether one of the names is this one. The common name counts where there are no others, as of old.
    pub fn is_for(&self, name: &str) -> bool {
        let mut names = self.dns_names.iter().map(String::as_str);
        let common = self.common_name.as_deref().filter(|_| self.dns_names.is_empty());
        names.any(|known| known == name) || common == Some(name)
    }
}

/// The last common name is the most specific one. If it is not printable text, there is none: an earlier one
/// was not meant to identify the client.
fn common_name(subject: &Name) -> Option<String> {
    let mut attributes = subject.0.iter().flat_map(|part| part.0.iter());
    let last = attributes.rfind(|attribute| attribute.oid == COMMON_NAME)?;
    let name = text(&last.value).filter(|_| TEXTS.contains(&last.value.tag()))?;
    (!name.is_empty() && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

fn text(value: &Any) -> Option<&str> {
    std::str::from_utf8(value.value()).ok()
}

/// Whether this is a host name, or a wildcard for host names.
fn is_dns_name(name: &str) -> bool {
    DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_ok()
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
