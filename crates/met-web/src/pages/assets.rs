//! Style sheet, scripts and icon, compiled in. Their names hold a hash of their content, so a browser may keep them
//! for ever.

use std::sync::LazyLock;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};

const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// Characters of a hash in a name.
const HASH_CHARACTERS: usize = 12;

pub struct Asset {
    pub name: String,
    pub text: &'static str,
    kind: &'static str,
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, text: &'static str) -> Asset {
        let hash = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()));
        Asset { name: format!("{stem}-{}.{ending}", &hash[..HASH_CHARACTERS]), text, kind }
    }

    /// As a content security policy names it.
    pub fn integrity(&self) -> String {
        integrity(self.text)
    }
}

/// The hash of an inline script or style in a content security policy.
pub fn integrity(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

pub struct Assets {
    pub style: Asset,
    pub uplot: Asset,
    pub script: Asset,
    pub icon: Asset,
}

pub static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let script = "text/javascript; charset=utf-8";
    Assets {
        style: Asset::new("met", "css", "text/css; charset=utf-8", include_str!("../../assets/met.css")),
        uplot: Asset::new("uplot", "js", script, include_str!("../../assets/uplot.js")),
        script: Asset::new("met", "js", script, include_str!("../../assets/met.js")),
        icon: Asset::new("icon", "svg", "image/svg+xml", include_str!("../../assets/icon.svg")),
    }
});

impl Assets {
    fn all(&self) -> [&Asset; 4] {
        [&self.style, &self.uplot, &self.script, &self.icon]
    }
}

/// One of them by its name; nothing else has a name here.
pub fn serve(name: &str) -> Response {
    let Some(asset) = ASSETS.all().into_iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "no such file\n").into_response();
    };
    let headers = [(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, FOR_EVER)];
    (headers, asset.text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_content_and_nothing_else_is_served() {
        let [one, other] = ["a", "b"].map(|text| Asset::new("met", "css", "text/css", text).name);
        assert_ne!(one, other);
        assert_eq!(serve(&ASSETS.style.name).status(), StatusCode::OK);
        for name in ["met.css", "../Cargo.toml", "", "met-.css"] {
            assert_eq!(serve(name).status(), StatusCode::NOT_FOUND, "{name}");
        }
    }

    #[test]
    fn the_script_has_nothing_that_a_policy_refuses() {
        for text in [
            "innerHTML",
            "eval(",
            "new Function",
            "document.write",
            "insertAdjacentHTML",
            "setAttribute(\"style",
        ] {
            assert!(!ASSETS.script.text.contains(text), "{text}");
        }
        assert!(!ASSETS.style.text.contains("url("), "the style sheet loads nothing");
    }
}
