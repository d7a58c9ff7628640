//! Which addresses may connect, and for which hosts they may speak.

use std::net::IpAddr;

use met_core::hostlist;

#[derive(Clone, Debug)]
pub struct Allowed {
    networks: Vec<(IpAddr, u8)>,
    hosts: Vec<String>,
}

impl Allowed {
    /// Both are required. The error names the key.
    pub fn parse(allow: &[String], hosts: &[String]) -> Result<Allowed, String> {
        if allow.is_empty() {
            return Err("colmet.allow: required with colmet.listen; write for example 10.0.0.0/16".to_owned());
        }
        if hosts.is_empty() {
            return Err("colmet.hosts: required with colmet.listen; write for example node-[1-64]".to_owned());
        }
        let networks: Result<Vec<(IpAddr, u8)>, String> = allow.iter().map(|text| network(text)).collect();
        let hosts = hosts.iter().flat_map(|pattern| hostlist::hosts(pattern)).collect();
        Ok(Allowed { networks: networks?, hosts })
    }

    pub fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|&(network, bits)| contains(network, bits, address))
    }

    pub fn has_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| fits(pattern, host))
    }
}

fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong =
        || format!("colmet.allow: {text:?} is not an address or a network; write for example 10.0.0.0/16");
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.unwrap_or(most) {
        bits if bits <= most => Ok((address, bits)),
        _ => Err(wrong()),
    }
}

fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let same = |one: u128, other: u128, width: u32| {
        let rest = width - u32::from(bits);
        rest >= width || one >> rest == other >> rest
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            same(u32::from(network).into(), u32::from(address).into(), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => same(network.into(), address.into(), 128),
        _ => false,
    }
}

/// `*` matches any letters, also none.
fn fits(pattern: &str, host: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == host };
    let Some(host) = host.strip_prefix(begin) else { return false };
    let (middle, end) = rest.rsplit_once('*').map_or((None, rest), |(middle, end)| (Some(middle), end));
    let Some(mut host) = host.strip_suffix(end) else { return false };
    for piece in middle.iter().flat_map(|middle| middle.split('*')) {
        match host.find(piece) {
            Some(at) => host = &host[at + piece.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(allow: &[&str], hosts: &[&str]) -> Result<Allowed, String> {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        Allowed::parse(&texts(allow), &texts(hosts))
    }

    #[test]
    fn addresses_are_in_a_network_or_not() {
        let allowed = allowed(&["10.1.0.0/16", "192.0.2.7", "2001:db8::/32", "::1"], &["*"]).unwrap();
        for inside in ["10.1.255.1", "192.0.2.7", "2001:db8::5", "::1", "::ffff:10.1.2.3"] {
            assert!(allowed.has_address(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.2.0.1", "192.0.2.8", "127.0.0.1", "2001:db9::1", "::2"] {
            assert!(!allowed.has_address(outside.parse().unwrap()), "{outside}");
        }
        let all = super::Allowed::parse(&["0.0.0.0/0".to_owned()], &["*".to_owned()]).unwrap();
        assert!(all.has_address("203.0.113.9".parse().unwrap()) && !all.has_address("::1".parse().unwrap()));
    }

    #[test]
    fn hosts_are_named_by_lists_and_patterns() {
        let allowed = allowed(&["127.0.0.1"], &["node-[1-3,7]", "gpu*", "*.a.example", "x*y*z"]).unwrap();
        for named in ["node-1", "node-7", "gpu", "gpu12", "n1.a.example", "xyz", "x1y2z"] {
            assert!(allowed.has_host(named), "{named}");
        }
        for other in ["node-4", "node-12", "Gpu1", "a.example.b", "xz", "xy", ""] {
            assert!(!allowed.has_host(other), "{other}");
        }
    }

    #[test]
    fn both_lists_are_required_and_checked() {
        assert!(allowed(&[], &["*"]).unwrap_err().contains("colmet.allow: required"));
        assert!(allowed(&["127.0.0.1"], &[]).unwrap_err().contains("colmet.hosts: required"));
        for wrong in ["10.0.0.0/33", "x", "10.0.0.0/", "::/129", ""] {
            assert!(allowed(&[wrong], &["*"]).is_err(), "{wrong:?}");
        }
    }
}
