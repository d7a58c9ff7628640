//! Where machines are to be scraped: the JSON of Prometheus' file and HTTP service discovery.

use serde::Serialize;

/// Machines that are scraped alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Group<'a> {
    /// `host:port`
    targets: [String; 1],
    labels: Labels<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Labels<'a> {
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    #[serde(rename = "__scheme__")]
    scheme: &'static str,
}

/// A machine whose daemon has a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    pub node: &'a str,
    /// As it is reached from elsewhere; the node's name where nothing else is known.
    pub host: &'a str,
    pub port: u16,
    pub tls: bool,
    pub cluster: Option<&'a str>,
}

/// Written the same way whenever the same machines are there.
pub fn json(targets: &[Target<'_>]) -> String {
    let mut targets: Vec<&Target<'_>> = targets.iter().collect();
    targets.sort_by_key(|target| (target.node, target.host, target.port));
    let groups: Vec<Group<'_>> = targets.into_iter().map(group).collect();
    serde_json::to_string_pretty(&groups).unwrap_or_else(|_| "[]".to_owned())
}

fn group<'a>(target: &Target<'a>) -> Group<'a> {
    let host = match target.host.contains(':') {
        true => format!("[{}]:{}", target.host, target.port),
        false => format!("{}:{}", target.host, target.port),
    };
    let scheme = if target.tls { "https" } else { "http" };
    Group { targets: [host], labels: Labels { node: target.node, cluster: target.cluster, scheme } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn every_machine_is_a_target_with_its_name() {
        let target = |node, host, tls| Target { node, host, port: 9317, tls, cluster: Some("c1") };
        let targets = [target("n2", "n2.example.org", true), target("n1", "fe80::1", false)];
        expect![[r#"
            [
              {
                "targets": [
                  "[fe80::1]:9317"
                ],
                "labels": {
                  "node": "n1",
                  "cluster": "c1",
                  "__scheme__": "http"
                }
              },
              {
                "targets": [
                  "n2.example.org:9317"
                ],
                "labels": {
                  "node": "n2",
                  "cluster": "c1",
                  "__scheme__": "https"
                }
              }
            ]"#]]
        .assert_eq(&json(&targets));
        assert_eq!(json(&[]), "[]");
    }
}
