//! Where to go after a login: a path of this listener and nothing else.

use axum::http::Uri;

const BYTES_MAX: usize = 2048;

/// The path, if a browser can only take it for one of this origin; else the first page.
pub(super) fn own_path(next: &str) -> &str {
    let is_plain =
        next.len() <= BYTES_MAX && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    // Two slashes begin the name of a host, and not only at the start of the address bar's idea of a path.
    let is_path = next.starts_with('/') && !next.starts_with("//");
    match is_plain && is_path && !next.starts_with("/login") && !next.starts_with("/logout") {
        true => next,
        false => "/",
    }
}

/// The path and query of a request.
pub(super) fn of(uri: &Uri) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    own_path(path).to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_of_our_own_is_followed_and_nothing_else() {
        for own in ["/", "/jobs?user=ada&sort=-cpu", "/jobs/slurm:12", "/nodes/n1#x", "/.//evil"] {
            assert_eq!(own_path(own), own);
        }
        for foreign in [
            "",
            "jobs",
            "//evil.example",
            "///evil",
            "/\\evil.example",
            "\\\\evil",
            "https://evil.example",
            "javascript:alert(1)",
            "/jobs\r\nSet-Cookie: a=b",
            "/\t/evil.example",
            " /jobs",
            "/login?next=/login",
            "/logout",
            "/\u{e4}",
        ] {
            assert_eq!(own_path(foreign), "/", "{foreign:?}");
        }
        assert_eq!(own_path(&format!("/{}", "a".repeat(5000))), "/");
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_path_of_this_origin(text in "\\PC{0,60}|/[/\\\\:@.a-z\\t\\n]{0,20}") {
            let path = own_path(&text);
            prop_assert!(path.starts_with('/') && !path.starts_with("//") && !path.contains('\\'));
            prop_assert!(path.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
