//! Who is asking: the address, and what was proven.

use std::net::SocketAddr;

use rustls::pki_types::{CertificateDer, DnsName};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Name};

/// An extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub address: SocketAddr,
    /// Named with the right password.
    pub user: Option<String>,
    /// Of the client, checked against the authority that the file names.
    pub certificate: Option<Certificate>,
}

impl Peer {
    /// Whether it is known who this is.
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
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        let alternative = certificate.subject_alternative_name().ok()?;
        let names = alternative.iter().flat_map(|found| &found.value.general_names);
        let dns_names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) if is_dns_name(name) => Some((*name).to_owned()),
            _ => None,
        });
        let dns_names = dns_names.collect();
        let common_name = common_name(certificate.subject());
        rest.is_empty().then_some(Certificate { common_name, dns_names })
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
fn common_name(subject: &X509Name<'_>) -> Option<String> {
    let name = subject.iter_common_name().last()?.as_str().ok()?;
    (!name.is_empty() && !name.chars().any(char::is_control)).then(|| name.to_owned())
}

/// Whether this is a host name, or a wildcard for host names. The parser checks only that it is ASCII.
fn is_dns_name(name: &str) -> bool {
    DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_ok()
}

#[cfg(test)]
#[path = "asker_tests.rs"]
mod tests;
