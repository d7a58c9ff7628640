//! Cookies: read from a request, and written so that only this listener gets them back.

use axum::http::{HeaderMap, HeaderValue, header};

/// Cookies of one name that are looked at: another program at this host may set more of them.
const SAME_NAME_MAX: usize = 4;
/// A longer one is not ours.
const VALUE_BYTES_MAX: usize = 4096;

/// How cookies are named and where browsers send them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieShape {
    /// Browsers send cookies to all ports of a host, so two listeners on one host need two names.
    pub name: String,
    /// With a slash at its end.
    pub path: String,
}

impl CookieShape {
    /// With the prefix that makes browsers refuse a cookie which another host or a plain connection set.
    fn full_name(&self, part: &str, is_secure: bool) -> String {
        let prefix = match (is_secure, self.path.as_str()) {
            (true, "/") => "__Host-",
            (true, _) => "__Secure-",
            (false, _) => "",
        };
        format!("{prefix}{}{part}", self.name)
    }

    /// The values of our cookie in a request.
    pub(super) fn values<'h>(&self, headers: &'h HeaderMap, part: &str, is_secure: bool) -> Vec<&'h str> {
        let name = self.full_name(part, is_secure);
        let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|text| named(text, &name)).take(SAME_NAME_MAX).collect()
    }

    /// A header that sets it; `max_age_s` of 0 removes it.
    pub(super) fn set(&self, part: &str, value: &str, max_age_s: u64, is_secure: bool) -> HeaderValue {
        let (name, path) = (self.full_name(part, is_secure), &self.path);
        let secure = if is_secure { "; Secure" } else { "" };
        // Lax and not Strict: the way back from a provider is a navigation from another site.
        let text =
            format!("{name}={value}; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}");
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

fn named<'h>(text: &'h str, name: &str) -> Vec<&'h str> {
    let pairs = text.split(';').filter_map(|pair| pair.trim().split_once('='));
    let own = pairs.filter(|(known, value)| *known == name && value.len() <= VALUE_BYTES_MAX);
    own.map(|(_, value)| value.trim_matches('"')).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(path: &str) -> CookieShape {
        CookieShape { name: "met".to_owned(), path: path.to_owned() }
    }

    #[test]
    fn a_cookie_is_bound_as_tightly_as_the_connection_allows() {
        let text =
            |path: &str, is_secure| shape(path).set("", "v", 60, is_secure).to_str().unwrap().to_owned();
        assert_eq!(text("/", true), "__Host-met=v; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure");
        assert_eq!(
            text("/met/", true),
            "__Secure-met=v; Path=/met/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(text("/", false), "met=v; Path=/; Max-Age=60; HttpOnly; SameSite=Lax");
    }

    #[test]
    fn only_cookies_of_this_very_name_are_read() {
        let mut headers = HeaderMap::new();
        headers.append(
            header::COOKIE,
            HeaderValue::from_static("a=b; met=one;met=\"two\"; xmet=3; met; metx=4"),
        );
        headers.append(header::COOKIE, HeaderValue::from_static("met=five; __Host-met=six"));
        assert_eq!(shape("/").values(&headers, "", false), ["one", "two", "five"]);
        assert_eq!(shape("/").values(&headers, "", true), ["six"]);
    }

    proptest! {
        #[test]
        fn any_header_is_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                headers.insert(header::COOKIE, value);
            }
            prop_assert!(shape("/").values(&headers, "", false).len() <= SAME_NAME_MAX);
        }
    }
}
