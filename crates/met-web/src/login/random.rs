//! Secrets, and comparing them.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};

const SECRET_BYTES: usize = 32;

/// 256 random bits as text; `None`: the machine gives no random numbers.
pub(crate) fn secret() -> Option<String> {
    let mut bytes = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// In a time that does not depend on where they differ.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let hash = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let (one, other) = (hash(one), hash(other));
    one.as_ref().iter().zip(other.as_ref()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_compared_whole() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert_eq!(one.len(), 43);
        assert!(is_same(&one, &one) && !is_same(&one, &other) && !is_same(&one, "") && is_same("", ""));
        assert!(!is_same(&one, &one[..42]));
    }
}
