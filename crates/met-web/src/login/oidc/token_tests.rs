use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use super::*;

const NOW_S: i64 = 1_794_700_800;

struct Provider {
    pair: EcdsaKeyPair,
}

impl Provider {
    fn new() -> Provider {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        Provider { pair }
    }

    fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({ "kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "x": part(&point[1..33]), "y": part(&point[33..]) })
    }

    fn keys(&self) -> Vec<Key> {
        keys(json!({ "keys": [self.jwk()] }).to_string().as_bytes()).unwrap()
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

fn header() -> Value {
    json!({ "alg": "ES256", "kid": "k1", "typ": "JWT" })
}

fn claims() -> Value {
    json!({ "iss": "https://sso", "aud": "met", "nonce": "n", "exp": NOW_S + 60, "iat": NOW_S, "sub": "7",
            "preferred_username": "ada" })
}

fn expected() -> Expected<'static> {
    Expected {
        issuer: "https://sso",
        client_id: "met",
        nonce: "n",
        claim: "preferred_username",
        now_s: NOW_S,
    }
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

#[test]
fn a_token_names_its_user_and_every_other_is_refused_for_its_reason() {
    let provider = Provider::new();
    let read = |header: &Value, claims: &Value| {
        verify(&provider.token(header, claims), &provider.keys(), expected())
    };
    assert_eq!(read(&header(), &claims()), Ok("ada".to_owned()));
    assert_eq!(read(&header(), &with("aud", json!(["met"]))), Ok("ada".to_owned()));
    let mut two = with("aud", json!(["met", "other"]));
    assert_eq!(read(&header(), &two), Err(Refused::Other("client")));
    two["azp"] = "met".into();
    assert_eq!(read(&header(), &two), Ok("ada".to_owned()));
    for (name, value, refused) in [
        ("iss", json!("https://sso/"), Refused::Other("issuer")),
        ("iss", json!("https://evil"), Refused::Other("issuer")),
        ("iss", Value::Null, Refused::Other("issuer")),
        ("aud", json!("other"), Refused::Other("client")),
        ("aud", json!(["other"]), Refused::Other("client")),
        ("aud", json!([]), Refused::Other("client")),
        ("aud", json!({ "met": true }), Refused::Other("client")),
        ("azp", json!("other"), Refused::Other("client")),
        ("nonce", json!("m"), Refused::Other("login")),
        ("nonce", Value::Null, Refused::Other("login")),
        ("exp", json!(NOW_S - 61), Refused::Expired),
        ("exp", json!(-1), Refused::Expired),
        ("exp", json!("9999999999"), Refused::Malformed),
        ("iat", json!(NOW_S + 3600), Refused::Early),
        ("nbf", json!(NOW_S + 3600), Refused::Early),
    ] {
        assert_eq!(read(&header(), &with(name, value.clone())), Err(refused), "{name} {value}");
    }
    for name in [
        json!(7),
        json!(""),
        json!(" ada"),
        json!("ada\n"),
        json!(["ada"]),
        Value::Null,
        json!("a".repeat(300)),
    ] {
        let refused = read(&header(), &with("preferred_username", name.clone()));
        assert_eq!(refused, Err(Refused::Claim("preferred_username".to_owned())), "{name}");
    }
}

#[test]
fn an_address_counts_only_if_the_provider_verified_it() {
    let provider = Provider::new();
    let read = |claims: &Value| {
        let expected = Expected { claim: "email", ..expected() };
        verify(&provider.token(&header(), claims), &provider.keys(), expected)
    };
    let mut claims = with("email", "ada@example.org".into());
    assert!(read(&claims).is_err());
    claims["email_verified"] = "true".into();
    assert!(read(&claims).is_err());
    claims["email_verified"] = true.into();
    assert_eq!(read(&claims), Ok("ada@example.org".to_owned()));
}

#[test]
fn neither_no_signature_nor_a_public_key_as_secret_is_accepted() {
    let provider = Provider::new();
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let unsigned = |alg: &str| format!("{}.{}.", part(&json!({ "alg": alg, "kid": "k1" })), part(&claims()));
    for alg in ["none", "None", "NONE", "", "HS256", "RS512", "ES384", "EdDSA"] {
        assert_eq!(verify(&unsigned(alg), &provider.keys(), expected()), Err(Refused::Algorithm), "{alg}");
    }
    let message = format!("{}.{}", part(&json!({ "alg": "HS256", "kid": "k1" })), part(&claims()));
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, provider.pair.public_key().as_ref());
    let tag = BASE64_URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, message.as_bytes()));
    assert_eq!(verify(&format!("{message}.{tag}"), &provider.keys(), expected()), Err(Refused::Algorithm));
    // A key of one kind is not used for the algorithm of another.
    let as_rsa = provider.token(&json!({ "alg": "RS256", "kid": "k1" }), &claims());
    assert_eq!(verify(&as_rsa, &provider.keys(), expected()), Err(Refused::UnknownKey));
    assert_eq!(verify(&unsigned("ES256"), &provider.keys(), expected()), Err(Refused::Signature));
}

#[test]
fn a_token_of_another_key_is_refused() {
    let (provider, other) = (Provider::new(), Provider::new());
    let token = other.token(&header(), &claims());
    assert_eq!(verify(&token, &provider.keys(), expected()), Err(Refused::Signature));
    let unknown = provider.token(&json!({ "alg": "ES256", "kid": "k2" }), &claims());
    assert_eq!(verify(&unknown, &provider.keys(), expected()), Err(Refused::UnknownKey));
    let nameless = provider.token(&json!({ "alg": "ES256" }), &claims());
    assert_eq!(verify(&nameless, &provider.keys(), expected()), Err(Refused::UnknownKey));
    // A key that the token brings itself is not looked at.
    let own = json!({ "alg": "ES256", "kid": "k1", "jwk": other.jwk(), "jku": "http://127.0.0.1/keys" });
    assert_eq!(verify(&other.token(&own, &claims()), &provider.keys(), expected()), Err(Refused::Signature));
    let critical = json!({ "alg": "ES256", "kid": "k1", "crit": ["exp"] });
    assert_eq!(
        verify(&provider.token(&critical, &claims()), &provider.keys(), expected()),
        Err(Refused::Malformed)
    );
}

#[test]
fn keys_for_other_purposes_are_left_out() {
    let provider = Provider::new();
    let variant = |name: &str, value: Value| {
        let mut jwk = provider.jwk();
        jwk[name] = value;
        keys(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap().len()
    };
    assert_eq!(variant("use", "sig".into()), 1);
    for (name, value) in [
        ("use", json!("enc")),
        ("alg", json!("ES384")),
        ("kid", json!("")),
        ("kid", Value::Null),
        ("kty", json!("oct")),
        ("crv", json!("P-384")),
        ("x", json!("AAAA")),
        ("y", json!("*")),
    ] {
        assert_eq!(variant(name, value.clone()), 0, "{name} {value}");
    }
    let many = json!({ "keys": vec![provider.jwk(); 1000] });
    assert_eq!(keys(many.to_string().as_bytes()).unwrap().len(), KEYS_MAX);
    assert_eq!(keys(b"[]"), None);
}

proptest! {
    #[test]
    fn any_bytes_are_keys_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = keys(&bytes);
    }

    #[test]
    fn any_text_is_no_token(text in "\\PC{0,200}") {
        prop_assert!(verify(&text, &[], expected()).is_err());
    }

    #[test]
    fn a_changed_token_is_refused(position in 0..400_usize, letter in "[A-Za-z0-9_.-]") {
        let provider = Provider::new();
        let token = provider.token(&header(), &claims());
        let position = position % token.len();
        let mut changed = token.clone();
        changed.replace_range(position..position + 1, &letter);
        // The last letter of base64 may have bits that mean nothing.
        prop_assume!(changed != token);
        prop_assert!(verify(&changed, &provider.keys(), expected()).is_err());
    }
}
