//! Who is asking: the address, and what was proven.

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;

/// An extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    pub peer: SocketAddr,
    /// Named with the right password.
    pub user: Option<String>,
    /// Of the client, checked against the authority that the file names.
    pub certificate: Option<Certificate>,
}

impl Asker {
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
    pub(super) fn read(der: &CertificateDer<'_>) -> Option<Certificate> {
        let certificate = webpki::EndEntityCert::try_from(der).ok()?;
        Some(Certificate {
            common_name: common_name(certificate.subject()),
            dns_names: certificate.valid_dns_names().map(str::to_owned).collect(),
        })
    }

    /// Whether one of the names is this one. The common name counts where there are no others, as of old.
    pub fn is_for(&self, name: &str) -> bool {
        let mut names = self.dns_names.iter().map(String::as_str);
        let common = self.common_name.as_deref().filter(|_| self.dns_names.is_empty());
        names.any(|known| known == name) || common == Some(name)
    }
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The last common name of a subject: a list of sets of pairs, in DER.
fn common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while let Some((SET, mut names, rest)) = element(subject) {
        subject = rest;
        while let Some((SEQUENCE, pair, rest)) = element(names) {
            names = rest;
            let Some((OBJECT_IDENTIFIER, kind, value)) = element(pair) else { continue };
            let Some((tag, text, _)) = element(value) else { continue };
            if kind == COMMON_NAME && TEXTS.contains(&tag) {
                found = std::str::from_utf8(text).ok().map(str::to_owned).or(found);
            }
        }
    }
    found
}

/// Tag and content of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Names are short: two bytes of length are plenty.
        0x81 | 0x82 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, content: &[u8]| [&[tag, content.len() as u8], content].concat();
        let pair = [wrap(OBJECT_IDENTIFIER, kind), wrap(tag, text)].concat();
        wrap(SET, &wrap(SEQUENCE, &pair))
    }

    #[test]
    fn the_common_name_is_found_among_others() {
        let subject = [pair(&[0x55, 4, 10], 0x0c, b"Centre"), pair(&COMMON_NAME, 0x13, b"node7")].concat();
        assert_eq!(common_name(&subject).as_deref(), Some("node7"));
        assert_eq!(common_name(&pair(&[0x55, 4, 10], 0x0c, b"Centre")), None);
        assert_eq!(common_name(&pair(&COMMON_NAME, 0x1e, b"\0n")), None, "of two bytes each");
    }

    #[test]
    fn a_common_name_counts_where_there_is_no_other() {
        let with = |dns_names: &[&str]| Certificate {
            common_name: Some("node7".to_owned()),
            dns_names: dns_names.iter().map(|&name| name.to_owned()).collect(),
        };
        assert!(with(&[]).is_for("node7"));
        assert!(with(&["node8"]).is_for("node8") && !with(&["node8"]).is_for("node7"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_subject_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = common_name(&bytes);
        }

        #[test]
        fn whatever_the_name_is_it_is_read(name in "[a-z0-9.-]{1,60}") {
            prop_assert_eq!(common_name(&pair(&COMMON_NAME, 0x0c, name.as_bytes())), Some(name));
        }
    }
}
