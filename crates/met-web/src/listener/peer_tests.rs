use super::*;
use proptest::prelude::*;

const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const TELETEX: u8 = 0x14;
const IA5: u8 = 0x16;
const UTF16: u8 = 0x1e;
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
const ORGANISATION: [u8; 3] = [0x55, 4, 10];

/// Tags of alternative names.
const MAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;

type Attribute<'a> = (&'a [u8], u8, &'a [u8]);
type Alternative<'a> = (u8, &'a [u8]);

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    let length = match content.len() {
        0..0x80 => vec![length[1]],
        0x80..0x100 => vec![0x81, length[1]],
        _ => vec![0x82, length[0], length[1]],
    };
    [&[tag], &length[..], content].concat()
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    element(0x30, &parts.concat())
}

fn subject(attributes: &[Attribute<'_>]) -> Vec<u8> {
    let set = |&(kind, tag, text): &Attribute<'_>| {
        element(0x31, &sequence(&[element(0x06, kind), element(tag, text)]))
    };
    sequence(&attributes.iter().map(set).collect::<Vec<_>>())
}

fn alternative_names(names: &[Alternative<'_>]) -> Vec<u8> {
    let names: Vec<_> = names.iter().map(|&(tag, name)| element(tag, name)).collect();
    sequence(&[element(0x06, &[0x55, 0x1d, 0x11]), element(0x04, &sequence(&names))])
}

/// A certificate with this subject and these extensions; its signature is not checked here.
fn certificate(attributes: &[Attribute<'_>], extensions: &[Vec<u8>]) -> Vec<u8> {
    let algorithm = sequence(&[element(0x06, &[0x2b, 0x65, 0x70])]);
    let time = element(0x17, b"260101000000Z");
    let mut parts = vec![
        element(0xa0, &element(0x02, &[2])),
        element(0x02, &[1]),
        algorithm.clone(),
        subject(&[(&COMMON_NAME, UTF8, b"authority")]),
        sequence(&[time.clone(), time]),
        subject(attributes),
        sequence(&[algorithm.clone(), element(0x03, &[0; 33])]),
    ];
    if !extensions.is_empty() {
        parts.push(element(0xa3, &sequence(extensions)));
    }
    sequence(&[sequence(&parts), algorithm, element(0x03, &[0; 65])])
}

fn read(attributes: &[Attribute<'_>], extensions: &[Vec<u8>]) -> Option<Certificate> {
    Certificate::read(&CertificateDer::from(certificate(attributes, extensions)))
}

fn common_name_of(attributes: &[Attribute<'_>]) -> Option<String> {
    read(attributes, &[]).unwrap().common_name
}

fn dns_names_of(names: &[Alternative<'_>]) -> Vec<String> {
    read(&[(&COMMON_NAME, UTF8, b"node7")], &[alternative_names(names)]).unwrap().dns_names
}

#[test]
fn the_common_name_is_found_among_other_attributes() {
    let found = common_name_of(&[(&ORGANISATION, UTF8, b"Centre"), (&COMMON_NAME, PRINTABLE, b"node7")]);
    assert_eq!(found.as_deref(), Some("node7"));
    assert_eq!(common_name_of(&[(&COMMON_NAME, IA5, b"node7")]).as_deref(), Some("node7"));
    assert_eq!(common_name_of(&[(&ORGANISATION, UTF8, b"Centre")]), None);
    assert_eq!(common_name_of(&[]), None);
}

#[test]
fn the_last_of_several_common_names_counts_even_if_it_cannot_be_read() {
    let names = |last: Attribute<'_>| common_name_of(&[(&COMMON_NAME, UTF8, b"node7"), last]);
    assert_eq!(names((&COMMON_NAME, UTF8, b"node8")).as_deref(), Some("node8"));
    assert_eq!(names((&COMMON_NAME, UTF8, b"\xff")), None);
    assert_eq!(names((&COMMON_NAME, UTF16, b"\0n")), None);
}

#[test]
fn a_common_name_that_is_not_printable_text_does_not_count() {
    let name = |tag: u8, text: &[u8]| common_name_of(&[(&COMMON_NAME, tag, text)]);
    assert_eq!(name(UTF8, b"node7\0.example.org"), None, "NUL");
    assert_eq!(name(UTF8, b"node7\n"), None, "control character");
    assert_eq!(name(UTF8, b"node\xff"), None, "not UTF-8");
    assert_eq!(name(UTF16, b"\0n\0o"), None, "UTF-16");
    assert_eq!(name(TELETEX, b"node7"), None, "no fixed character set");
    assert_eq!(name(0x02, b"7"), None, "a number");
    assert_eq!(name(UTF8, b""), None, "empty");
    assert_eq!(name(UTF8, "nœud".as_bytes()).as_deref(), Some("nœud"));
}

#[test]
fn only_valid_host_names_count_as_alternative_names() {
    let found = dns_names_of(&[
        (DNS, b"node7.example.org"),
        (DNS, b"*.example.org"),
        (DNS, b"node7\0.example.org"),
        (DNS, b"node\xff"),
        (DNS, b"node 7"),
        (DNS, b"*"),
        (DNS, b"*."),
        (DNS, b"node*.example.org"),
        (DNS, b""),
        (MAIL, b"ann@example.org"),
        (URI, b"node8.example.org"),
        (ADDRESS, &[127, 0, 0, 1]),
        (DNS, b"node9"),
    ]);
    assert_eq!(found, ["node7.example.org", "*.example.org", "node9"]);
}

#[test]
fn a_wildcard_matches_no_other_name() {
    let shown = read(&[], &[alternative_names(&[(DNS, b"*.example.org")])]).unwrap();
    assert!(shown.is_for("*.example.org"));
    assert!(!shown.is_for("node7.example.org") && !shown.is_for("example.org"));
}

#[test]
fn a_common_name_counts_only_without_dns_names() {
    let with = |names: &[Alternative<'_>]| {
        read(&[(&COMMON_NAME, UTF8, b"node7")], &[alternative_names(names)]).unwrap()
    };
    assert!(read(&[(&COMMON_NAME, UTF8, b"node7")], &[]).unwrap().is_for("node7"));
    assert!(with(&[(DNS, b"node8")]).is_for("node8") && !with(&[(DNS, b"node8")]).is_for("node7"));
    assert!(with(&[(ADDRESS, &[10, 0, 0, 7])]).is_for("node7"), "an address is not a name");
}

#[test]
fn a_malformed_certificate_identifies_no_one() {
    let names = alternative_names(&[(DNS, b"node7")]);
    let attributes: &[Attribute<'_>] = &[(&COMMON_NAME, UTF8, b"node7")];
    assert!(read(attributes, std::slice::from_ref(&names)).is_some());
    assert_eq!(read(attributes, &[names.clone(), names]), None, "alternative names twice");
    let cut = sequence(&[element(0x06, &[0x55, 0x1d, 0x11]), element(0x04, &[0x30, 0x7f])]);
    assert_eq!(read(attributes, &[cut]), None, "alternative names longer than their extension");
    let whole = certificate(attributes, &[]);
    let followed = [&whole[..], b"\0"].concat();
    assert_eq!(Certificate::read(&CertificateDer::from(followed)), None, "bytes after the end");
    for length in 0..whole.len() {
        assert_eq!(Certificate::read(&CertificateDer::from(&whole[..length])), None, "{length} bytes");
    }
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Certificate::read(&CertificateDer::from(bytes));
    }

    #[test]
    fn no_damaged_certificate_causes_a_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let names = alternative_names(&[(DNS, b"node7.example.org"), (ADDRESS, &[127, 0, 0, 1])]);
        let mut bytes = certificate(&[(&COMMON_NAME, UTF8, b"node7")], &[names]);
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(read) = Certificate::read(&CertificateDer::from(bytes)) {
            let is_printable = |name: &String| !name.chars().any(char::is_control);
            prop_assert!(read.common_name.iter().chain(&read.dns_names).all(is_printable));
        }
    }

    #[test]
    fn any_host_name_is_read(name in "[a-z0-9]{1,30}(\\.[a-z][a-z0-9]{0,20}){0,3}") {
        let shown = read(&[(&COMMON_NAME, UTF8, name.as_bytes())], &[]).unwrap();
        prop_assert_eq!(shown.common_name.as_ref(), Some(&name));
    }
}
