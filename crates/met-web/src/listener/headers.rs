//! Headers of every response: what a browser may do with it.

use axum::http::HeaderMap;
use axum::http::header::{self, HeaderName, HeaderValue};

/// Scripts, styles, images and requests of this origin and nothing else, none of them inline. An image in `data:` can
/// do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// `same-origin` as referrer: without any, a browser would send `Origin: null` with forms.
const SECURE: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // A response that may be kept says so itself.
    (header::CACHE_CONTROL, "no-store"),
];

/// Adds what the handler did not set itself.
pub(super) fn secure(headers: &mut HeaderMap) {
    for (name, value) in SECURE {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_handler_says_of_caching_stays() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=31536000, immutable"));
        secure(&mut headers);
        assert_eq!(headers[header::CACHE_CONTROL], "max-age=31536000, immutable");
        assert!(headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
        assert_eq!(headers.len(), SECURE.len());
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"));
    }
}
