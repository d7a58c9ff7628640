//! What was done about findings goes when it has no effect any more, and with the last run of its lineage.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use met_core::reaction::Reaction;
use met_insight::lineage::lineage;
use met_store::{StoreError, Writer};

use super::{JobsFilter, PageAsk};

/// The newest jobs of a user that are looked at. Of one with more jobs nothing is concluded: reactions are few.
const JOBS_MAX: usize = 200;
/// What asks meanwhile waits. The rest is left to the next time.
const LOOK_FOR: Duration = Duration::from_millis(50);

/// The last user who was looked at, where others are left to the next time, in the store.
const LAST_USER: &str = "forgotten-until";

/// After jobs were removed. Returns how much was forgotten.
pub fn forget_reactions(writer: &mut Writer, now_ns: i64) -> Result<usize, StoreError> {
    let begin = Instant::now();
    forget_until(writer, now_ns, || begin.elapsed() > LOOK_FOR)
}

/// Goes on behind the last user of the look before, so that all have their turn.
fn forget_until(
    writer: &mut Writer,
    now_ns: i64,
    mut is_over: impl FnMut() -> bool,
) -> Result<usize, StoreError> {
    let mut by_user: BTreeMap<String, Vec<Reaction>> = BTreeMap::new();
    for one in met_store::reactions(writer)? {
        by_user.entry(one.user.clone()).or_default().push(one);
    }
    let last = writer.meta(LAST_USER)?.unwrap_or_default();
    let (after, before): (Vec<_>, Vec<_>) = by_user.into_iter().partition(|(user, _)| *user > last);
    let (mut forgotten, mut looked_at) = (Vec::new(), None::<String>);
    for (user, reactions) in after.into_iter().chain(before) {
        // One at least, however long the reading of all took.
        if let Some(looked_at) = looked_at.as_ref().filter(|_| is_over()) {
            writer.set_meta(LAST_USER, looked_at)?;
            break;
        }
        let newest = JobsFilter { page: PageAsk::first(JOBS_MAX + 1), ..JobsFilter::default() };
        let jobs = writer.jobs(&newest.of_user(Some(&user)).to_store())?;
        let left: HashSet<String> = jobs.iter().map(|job| lineage(job).key()).collect();
        let is_left = |one: &Reaction| match one.lineage.is_empty() {
            true => !jobs.is_empty(),
            false => jobs.len() > JOBS_MAX || left.contains(&one.lineage),
        };
        forgotten.extend(reactions.into_iter().filter(|one| !one.is_current(now_ns) || !is_left(one)));
        looked_at = Some(user);
    }
    met_store::remove_reactions(writer, &forgotten)?;
    Ok(forgotten.len())
}

#[cfg(test)]
mod tests {
    use met_core::job::Record;
    use met_core::reaction::ReactionKind;

    use super::*;

    #[test]
    fn a_mute_goes_with_the_last_run_of_its_lineage_and_after_its_end() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let job = |id: u32, program: &str| Record {
            user: Some("ada".to_owned()),
            command: vec![program.to_owned()],
            ..met_core::sample::full(id, "x")
        };
        let jobs = [job(1, "train"), job(2, "train"), job(3, "blast")];
        writer.put_all(&jobs).unwrap();
        let muted = |of: Option<&Record>, user: &str, until_ns: Option<i64>| Reaction {
            user: user.to_owned(),
            uid: None,
            lineage: of.map(|job| lineage(job).key()).unwrap_or_default(),
            rule: if of.is_some() { "cpu_low" } else { "cores_unused" }.to_owned(),
            kind: ReactionKind::Muted,
            by: "ada".to_owned(),
            at_ns: 10,
            until_ns,
        };
        let all = [
            muted(Some(&jobs[0]), "ada", None),
            muted(Some(&jobs[2]), "ada", Some(1_000)),
            muted(None, "ada", None),
            muted(None, "bob", None),
        ];
        met_store::put_reactions(&mut writer, &all, 20).unwrap().unwrap();
        let left = |writer: &mut Writer, now_ns: i64| {
            forget_reactions(writer, now_ns).unwrap();
            met_store::reactions(writer).unwrap().len()
        };
        assert_eq!(left(&mut writer, 20), 3, "bob has no job");
        assert_eq!(left(&mut writer, 1_000), 2, "its end has come");
        writer.remove(&jobs[0].key).unwrap();
        assert_eq!(left(&mut writer, 1_000), 2, "another run is left");
        writer.remove(&jobs[1].key).unwrap();
        assert_eq!(left(&mut writer, 1_000), 1);
        writer.remove(&jobs[2].key).unwrap();
        assert_eq!(left(&mut writer, 1_000), 0, "the user has no job any more");
    }

    #[test]
    fn a_look_that_is_cut_short_goes_on_behind_the_last_user() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let muted = |user: &str| Reaction {
            user: user.to_owned(),
            uid: None,
            lineage: String::new(),
            rule: "cpu_low".to_owned(),
            kind: ReactionKind::Muted,
            by: "ada".to_owned(),
            at_ns: 10,
            until_ns: None,
        };
        let of =
            |user: &str, id: u32| Record { user: Some(user.to_owned()), ..met_core::sample::full(id, "x") };
        // Their jobs are left, and so is all that was done about them.
        writer.put_all(&[of("ada", 1), of("bob", 2)]).unwrap();
        met_store::put_reactions(&mut writer, &["ada", "bob", "eve"].map(muted), 20).unwrap().unwrap();
        let counts: Vec<usize> = (0..3).map(|_| forget_until(&mut writer, 20, || true).unwrap()).collect();
        assert_eq!(counts, [0, 0, 1], "one user each time: eve, who has no job, is the third");
        met_store::put_reactions(&mut writer, &[muted("aaron")], 20).unwrap().unwrap();
        assert_eq!(forget_until(&mut writer, 20, || true).unwrap(), 1, "behind the last is the first");
    }
}
