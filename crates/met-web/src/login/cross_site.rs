//! Writes that another site makes a browser send.

use axum::http::{HeaderMap, Method, header};

/// The header with the session's token. A foreign page cannot set it.
pub const CSRF_HEADER: &str = "x-met-csrf";
/// The same in a form.
pub const CSRF_FIELD: &str = "csrf";

pub(crate) fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a browser says that another site made the request. `public_host`: how browsers address the listener, where
/// that is configured. Programs that are no browsers send neither header.
pub(crate) fn is_cross_site(headers: &HeaderMap, public_host: Option<&str>) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    if text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return true;
    }
    let Some(origin) = text(header::ORIGIN.as_str()) else { return false };
    let host = text(header::HOST.as_str());
    let sender = origin.split_once("://").map(|(_, host)| host);
    // `null`: of a page without an origin.
    sender.is_none_or(|sender| Some(sender) != host && Some(sender) != public_host)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn is_foreign(pairs: &[(&'static str, &str)]) -> bool {
        let header = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        is_cross_site(&pairs.iter().map(header).collect(), Some("met.example"))
    }

    #[test]
    fn what_another_site_sends_is_refused_and_programs_are_not() {
        assert!(!is_foreign(&[]) && !is_foreign(&[("host", "n1:9317")]));
        for own in ["same-origin", "none"] {
            assert!(!is_foreign(&[("sec-fetch-site", own), ("host", "n1")]));
        }
        for foreign in ["cross-site", "same-site", "", "Same-Origin, none"] {
            assert!(is_foreign(&[("sec-fetch-site", foreign), ("host", "n1")]), "{foreign}");
        }
        assert!(!is_foreign(&[("origin", "http://n1:9317"), ("host", "n1:9317")]));
        assert!(!is_foreign(&[("origin", "https://met.example"), ("host", "127.0.0.1:9317")]));
        for foreign in ["null", "http://evil", "http://n1", "http://n1:9317.evil", "http://n1:9317@evil", ""]
        {
            assert!(is_foreign(&[("origin", foreign), ("host", "n1:9317")]), "{foreign}");
        }
        assert!(is_foreign(&[("sec-fetch-site", "cross-site"), ("origin", "http://n1"), ("host", "n1")]));
    }

    proptest! {
        #[test]
        fn a_foreign_origin_is_never_taken_for_our_own(origin in "https?://[a-z.:@0-9]{0,20}") {
            let is_own = ["http://n1", "https://n1", "http://met.example", "https://met.example"].contains(&origin.as_str());
            prop_assert_eq!(is_foreign(&[("origin", &origin), ("host", "n1")]), !is_own);
        }
    }
}
