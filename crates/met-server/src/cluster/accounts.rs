//! Which accounts a user is a member of: from a file, or from the scheduler's associations.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use met_core::member::ACCOUNTS_MAX;
use met_web::login::is_person_name;

const FILE_BYTES_MAX: u64 = 16 << 20;
/// How soon a changed file is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pairs of a user and an account.
const PAIRS_MAX: usize = 1_000_000;

/// The accounts of each user. Nothing is known of a user who is not in it: own jobs only.
pub type Memberships = HashMap<String, Vec<String>>;

#[derive(Default)]
pub struct Accounts {
    file: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    members: Memberships,
    looked: Option<Instant>,
    /// Inode, size and time of the file that was read.
    stamp: Option<(u64, u64, i64, i64)>,
}

impl Accounts {
    /// As a file says; an error if it cannot be read now.
    pub fn of_file(path: &Path) -> Result<Accounts, String> {
        let stamp = stamp(path);
        let members = read(path)?;
        let known = Mutex::new(Known { members, looked: Some(Instant::now()), stamp });
        Ok(Accounts { file: Some(path.to_owned()), known })
    }

    /// With what the scheduler or the file says now.
    pub fn replace(&self, members: Memberships) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).members = members;
    }

    pub fn of(&self, user: &str) -> Vec<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.file
            && known.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY)
        {
            known.refresh(path);
        }
        known.members.get(user).cloned().unwrap_or_default()
    }
}

impl Known {
    /// A file that cannot be read any more grants nothing: it may have been removed to that end.
    fn refresh(&mut self, path: &Path) {
        let stamp = stamp(path);
        self.looked = Some(Instant::now());
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        match read(path) {
            Ok(members) => self.members = members,
            Err(error) => {
                if self.stamp.is_some() || !self.members.is_empty() {
                    tracing::error!("server.accounts_file: {error}; users see their own jobs only");
                }
                self.members.clear();
            }
        }
        self.stamp = stamp;
    }
}

fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

fn read(path: &Path) -> Result<Memberships, String> {
    let refuse = |why: String| format!("{}: {why}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
    in_file(&text).map_err(refuse)
}

/// Lines `account: user, user`, with comments.
fn in_file(text: &str) -> Result<Memberships, String> {
    let mut pairs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let (account, users) =
            line.split_once(':').ok_or_else(|| format!("line {number}: write ACCOUNT: USER, USER"))?;
        for user in users.split(',').map(str::trim).filter(|user| !user.is_empty()) {
            if !is_person_name(account.trim()) || !is_person_name(user) {
                return Err(format!("line {number}: {user:?} in {account:?} is not a name"));
            }
            pairs.push((user, account.trim()));
        }
    }
    Ok(memberships(pairs))
}

/// The accounts of each user, from pairs of a user and an account. What is no name of a person or account is left out.
pub fn memberships<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> Memberships {
    let mut sorted: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    let are_names = |(user, account): &(&str, &str)| is_person_name(user) && is_person_name(account);
    for (user, account) in pairs.into_iter().filter(are_names).take(PAIRS_MAX) {
        sorted.entry(user).or_default().insert(account);
    }
    let owned =
        |accounts: BTreeSet<&str>| accounts.into_iter().take(ACCOUNTS_MAX).map(str::to_owned).collect();
    sorted.into_iter().map(|(user, accounts)| (user.to_owned(), owned(accounts))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_names_the_members_of_accounts() {
        let members = in_file("# who\nphysics: ada, bob # two\n\nchemistry:bob,bob,\nempty:\n").unwrap();
        assert_eq!((members["ada"].as_slice(), members["bob"].len()), (&["physics".to_owned()][..], 2));
        assert_eq!(members.len(), 2);
        assert!(in_file("physics ada\n").unwrap_err().starts_with("line 1"));
        assert!(in_file("\na b: ada\n").unwrap_err().starts_with("line 2"));
    }

    #[test]
    fn pairs_of_a_user_and_an_account_are_memberships() {
        let pairs = [("root", "root"), ("ada", "physics"), ("ada", "physics"), ("ada", "chem")];
        let members = memberships(pairs.into_iter().chain([("eve", "x y"), ("eve", ""), ("", "chem")]));
        assert_eq!(members["ada"], ["chem", "physics"]);
        assert_eq!(members["root"], ["root"]);
        assert_eq!(members.len(), 2);
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_removed_one_grants_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts");
        assert!(Accounts::of_file(&path).is_err());
        std::fs::write(&path, "physics: ada\n").unwrap();
        let accounts = Accounts::of_file(&path).unwrap();
        assert_eq!(accounts.of("ada"), ["physics"]);
        assert!(accounts.of("eve").is_empty());
        let look = |accounts: &Accounts| {
            accounts.known.lock().unwrap().looked = None;
            accounts.of("ada")
        };
        std::fs::write(&path, "chemistry: ada, bob\n").unwrap();
        assert_eq!(look(&accounts), ["chemistry"]);
        std::fs::write(&path, "chemistry ada\n").unwrap();
        assert!(look(&accounts).is_empty());
        std::fs::write(&path, "chemistry: ada\n").unwrap();
        assert_eq!(look(&accounts), ["chemistry"]);
        std::fs::remove_file(&path).unwrap();
        assert!(look(&accounts).is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_memberships_of_names(user in ".{0,20}", account in ".{0,20}", text in ".{0,300}") {
            for (user, accounts) in memberships([(user.as_str(), account.as_str())]) {
                prop_assert!(is_person_name(&user) && accounts.iter().all(|account| is_person_name(account)));
            }
            let _ = in_file(&text);
        }
    }
}
