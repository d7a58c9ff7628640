//! Where machines are to be scraped: the JSON of Prometheus' file and HTTP service discovery.

use serde_json::{Value, json};

/// A machine whose daemon has a page, by its name.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    pub node: &'a str,
    pub port: u16,
    pub tls: bool,
}

/// Written the same way whenever the same machines are there.
pub fn json(targets: &[Target<'_>]) -> String {
    let mut targets = targets.to_vec();
    targets.sort_by_key(|target| (target.node, target.port));
    let groups: Vec<Value> = targets.iter().map(group).collect();
    serde_json::to_string_pretty(&groups).unwrap_or_else(|_| "[]".to_owned())
}

fn group(Target { node, port, tls }: &Target<'_>) -> Value {
    let address = if node.contains(':') { format!("[{node}]:{port}") } else { format!("{node}:{port}") };
    let scheme = if *tls { "https" } else { "http" };
    json!({ "targets": [address], "labels": { "node": node, "__scheme__": scheme } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn every_machine_is_a_target_with_its_name() {
        let target = |node, tls| Target { node, port: 9317, tls };
        let targets = [target("n2.example.org", true), target("fe80::1", false)];
        expect![[r#"
            [
              {
                "targets": [
                  "[fe80::1]:9317"
                ],
                "labels": {
                  "node": "fe80::1",
                  "__scheme__": "http"
                }
              },
              {
                "targets": [
                  "n2.example.org:9317"
                ],
                "labels": {
                  "node": "n2.example.org",
                  "__scheme__": "https"
                }
              }
            ]"#]]
        .assert_eq(&json(&targets));
        assert_eq!(json(&[]), "[]");
    }
}
