//! Who is logged in. In memory alone: a restart ends all sessions.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};

use super::Person;
use super::random::secret;

const SESSIONS_MAX: usize = 10_000;
/// Of one person; the oldest makes room.
const PER_PERSON_MAX: usize = 20;

pub(super) struct Sessions {
    /// By the hash of the cookie: what is in memory here cannot be sent as a cookie.
    open: Mutex<HashMap<Vec<u8>, Session>>,
    pub(super) lifetime: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) person: Person,
    /// What a write must carry beside the cookie.
    pub(super) csrf: String,
    began: Instant,
}

impl Sessions {
    pub(super) fn new(lifetime: Duration) -> Sessions {
        Sessions { open: Mutex::default(), lifetime }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session and returns its cookie, which is always a new one. `None`: no random numbers.
    pub(super) fn begin(&self, person: Person) -> Option<String> {
        let (cookie, csrf) = (secret()?, secret()?);
        let mut open = self.open();
        open.retain(|_, session| session.began.elapsed() < self.lifetime);
        let is_same = |session: &Session| session.person.name == person.name;
        if open.values().filter(|session| is_same(session)).count() >= PER_PERSON_MAX {
            remove_oldest(&mut open, is_same);
        }
        if open.len() >= SESSIONS_MAX {
            remove_oldest(&mut open, |_| true);
        }
        open.insert(hash(&cookie), Session { person, csrf, began: Instant::now() });
        Some(cookie)
    }

    pub(super) fn get(&self, cookie: &str) -> Option<Session> {
        let open = self.open();
        open.get(&hash(cookie)).filter(|session| session.began.elapsed() < self.lifetime).cloned()
    }

    pub(super) fn end(&self, cookie: &str) -> Option<Person> {
        self.open().remove(&hash(cookie)).map(|session| session.person)
    }
}

fn remove_oldest(open: &mut HashMap<Vec<u8>, Session>, of: impl Fn(&Session) -> bool) {
    let oldest = open.iter().filter(|(_, session)| of(session)).min_by_key(|(_, session)| session.began);
    if let Some(oldest) = oldest.map(|(hash, _)| hash.clone()) {
        open.remove(&oldest);
    }
}

fn hash(cookie: &str) -> Vec<u8> {
    digest(&SHA256, cookie.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::Proof;
    use super::*;

    fn person(name: &str) -> Person {
        Person { name: name.to_owned(), proof: Proof::Provider }
    }

    #[test]
    fn a_session_is_known_by_its_cookie_until_it_ends() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let cookie = sessions.begin(person("ada")).unwrap();
        let other = sessions.begin(person("ada")).unwrap();
        assert_ne!(cookie, other);
        assert_eq!(sessions.get(&cookie).unwrap().person.name, "ada");
        assert_ne!(sessions.get(&cookie).unwrap().csrf, sessions.get(&other).unwrap().csrf);
        assert!(sessions.get("").is_none() && sessions.get("x").is_none());
        assert!(sessions.end(&cookie).is_some() && sessions.end(&cookie).is_none());
        assert!(sessions.get(&cookie).is_none() && sessions.get(&other).is_some());
    }

    #[test]
    fn an_old_session_is_none() {
        let sessions = Sessions::new(Duration::ZERO);
        let cookie = sessions.begin(person("ada")).unwrap();
        assert!(sessions.get(&cookie).is_none());
    }

    #[test]
    fn sessions_are_bounded_and_one_person_displaces_no_other() {
        let sessions = Sessions::new(Duration::from_secs(600));
        let bob = sessions.begin(person("bob")).unwrap();
        let first = sessions.begin(person("eve")).unwrap();
        for _ in 0..3 * PER_PERSON_MAX {
            sessions.begin(person("eve")).unwrap();
        }
        assert!(sessions.get(&bob).is_some() && sessions.get(&first).is_none());
        assert_eq!(sessions.open().len(), 1 + PER_PERSON_MAX);
    }
}
