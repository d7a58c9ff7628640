//! Id tokens and the keys that sign them. Pure: bytes in, a name or a refusal out.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::Value;

use super::super::is_person_name;

const TOKEN_BYTES_MAX: usize = 16 << 10;
const KEYS_MAX: usize = 64;
const KEY_ID_BYTES_MAX: usize = 256;
/// By how much the clock of the provider may differ.
const SKEW_S: i64 = 60;
/// The two algorithms that are accepted. What a token says of its algorithm only selects among them, and the key must
/// be of its kind: neither `none` nor a public key as a shared secret gets through.
const RS256: &str = "RS256";
const ES256: &str = "ES256";

/// A key of the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    id: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
}

impl Kind {
    fn algorithm(&self) -> &'static str {
        match self {
            Kind::Rsa { .. } => RS256,
            Kind::P256(_) => ES256,
        }
    }

    fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Kind::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Kind::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

/// The signing keys in a key set that can be used here. Others are left out.
pub(super) fn keys(body: &[u8]) -> Option<Vec<Key>> {
    let set: Value = serde_json::from_slice(body).ok()?;
    Some(set["keys"].as_array()?.iter().take(KEYS_MAX).filter_map(key).collect())
}

fn key(jwk: &Value) -> Option<Key> {
    let text = |name: &str| jwk[name].as_str();
    let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(text(name)?).ok();
    let id = text("kid").filter(|id| (1..=KEY_ID_BYTES_MAX).contains(&id.len()))?.to_owned();
    let kind = match (text("kty")?, text("crv")) {
        ("RSA", _) => Kind::Rsa { n: without_zeros(bytes("n")?), e: without_zeros(bytes("e")?) },
        ("EC", Some("P-256")) => {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == 32 && y.len() == 32).then(|| Kind::P256([&[4], &x[..], &y].concat()))?
        }
        _ => return None,
    };
    let is_for_signing = text("use").is_none_or(|using| using == "sig");
    let fits = text("alg").is_none_or(|algorithm| algorithm == kind.algorithm());
    (is_for_signing && fits).then_some(Key { id, kind })
}

/// Some providers write a leading zero, which is not part of the number.
fn without_zeros(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().skip_while(|&byte| byte == 0).collect()
}

/// What a token must say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    /// The claim that names the user.
    pub(super) claim: &'a str,
    pub(super) now_s: i64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("the id token is malformed")]
    Malformed,
    #[error("the id token is not signed with RS256 or ES256")]
    Algorithm,
    /// The provider may have a new one.
    #[error("the id token is signed with a key that the provider does not publish")]
    UnknownKey,
    #[error("the signature of the id token is wrong")]
    Signature,
    #[error("the id token is for another {0}")]
    Other(&'static str),
    #[error("the id token has expired")]
    Expired,
    #[error("the id token is of the future; compare the clocks")]
    Early,
    #[error("the id token has no usable claim {0:?}; see login.oidc_user_claim")]
    Claim(String),
}

/// Whose token this is.
pub(super) fn verify(token: &str, keys: &[Key], expected: Expected<'_>) -> Result<String, Refused> {
    let claims = signed(token, keys)?;
    let text = |name: &str| claims[name].as_str();
    if text("iss") != Some(expected.issuer) {
        return Err(Refused::Other("issuer"));
    }
    if !is_for(&claims, expected.client_id) {
        return Err(Refused::Other("client"));
    }
    if text("nonce") != Some(expected.nonce) {
        return Err(Refused::Other("login"));
    }
    let second = |name: &str| claims[name].as_f64().map(|second| second as i64);
    let expires_s = second("exp").ok_or(Refused::Malformed)?;
    if expires_s.saturating_add(SKEW_S) <= expected.now_s {
        return Err(Refused::Expired);
    }
    let begins_s = [second("iat").ok_or(Refused::Malformed)?, second("nbf").unwrap_or(i64::MIN)];
    if begins_s.iter().any(|begin_s| begin_s.saturating_sub(SKEW_S) > expected.now_s) {
        return Err(Refused::Early);
    }
    // Any user can claim the address of another person.
    let is_verified = expected.claim != "email" || claims["email_verified"] == Value::Bool(true);
    let name = text(expected.claim).filter(|name| is_verified && is_person_name(name));
    name.map(str::to_owned).ok_or_else(|| Refused::Claim(expected.claim.to_owned()))
}

/// With several audiences, the one that requested it must be this client.
fn is_for(claims: &Value, client_id: &str) -> bool {
    let presenter = claims["azp"].as_str();
    match &claims["aud"] {
        Value::String(audience) => {
            audience == client_id && presenter.is_none_or(|presenter| presenter == client_id)
        }
        Value::Array(all) => {
            let is_named = all.iter().any(|audience| audience.as_str() == Some(client_id));
            is_named && (presenter == Some(client_id) || (presenter.is_none() && all.len() == 1))
        }
        _ => false,
    }
}

/// The claims of a token, if one of the keys has signed them.
fn signed(token: &str, keys: &[Key]) -> Result<Value, Refused> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Refused::Malformed);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(Refused::Malformed)?;
    let header: Value = object(header).ok_or(Refused::Malformed)?;
    let algorithm = header["alg"].as_str().ok_or(Refused::Malformed)?;
    if ![RS256, ES256].contains(&algorithm) {
        return Err(Refused::Algorithm);
    }
    // Extensions that must be understood, and none is.
    if !header["crit"].is_null() {
        return Err(Refused::Malformed);
    }
    let id = header["kid"].as_str().ok_or(Refused::UnknownKey)?;
    let mut usable = keys.iter().filter(|key| key.id == id && key.kind.algorithm() == algorithm).peekable();
    if usable.peek().is_none() {
        return Err(Refused::UnknownKey);
    }
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refused::Malformed)?;
    match usable.any(|key| key.kind.has_signed(message.as_bytes(), &signature)) {
        true => object(claims).ok_or(Refused::Malformed),
        false => Err(Refused::Signature),
    }
}

fn object(part: &str) -> Option<Value> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok().filter(Value::is_object)
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
