//! What is done about findings: who may, and what is written. For daemons, servers and a user's own files alike.

use anyhow::Result;
use met_config::Failure;
use met_core::job::Record;
use met_core::reaction::{
    LINEAGE_BYTES_MAX, Reaction, ReactionChange, ReactionKind, ReactionStep, ReactionTarget,
};
use met_host::users;
use met_insight::lineage::lineage;
use met_store::Writer;

use crate::annotate::no_such_job;
use crate::viewer::Viewer;

/// Who reacts, and when.
#[derive(Clone, Debug)]
pub struct Actor {
    pub viewer: Viewer,
    pub name: String,
    pub now_ns: i64,
}

/// Keeps a change, if the actor may make it. `job`: the one that the change names, if there is one.
pub fn react(
    writer: &mut Writer,
    actor: &Actor,
    job: Option<&Record>,
    change: &ReactionChange,
) -> Result<()> {
    let (user, uid, lineage) = match &change.target {
        ReactionTarget::Job(_) => {
            permit(&actor.viewer, job)?;
            let record = job.ok_or_else(no_such_job)?;
            let of = lineage(record);
            (of.user.clone().unwrap_or_default(), record.uid, of.key())
        }
        ReactionTarget::User(name) => {
            permit_user(&actor.viewer, name)?;
            (name.clone(), users::uid_of(name), String::new())
        }
    };
    change.check(actor.now_ns).map_err(Failure::usage)?;
    if lineage.len() > LINEAGE_BYTES_MAX || user.len() > LINEAGE_BYTES_MAX {
        return Err(Failure::usage(
            "the command of this job is too long to be remembered; give its runs a name with --lineage",
        ));
    }
    let (kind, until_ns) = match change.step {
        ReactionStep::Acknowledge => (ReactionKind::Acknowledged, None),
        ReactionStep::Mute { until_ns } => (ReactionKind::Muted, until_ns),
        ReactionStep::Sent => (ReactionKind::Sent, None),
        ReactionStep::Unmute => {
            return match met_store::clear_reactions(writer, &user, &lineage, &change.rules)? {
                0 => Err(Failure::usage("none of these findings is muted or acknowledged")),
                _ => Ok(()),
            };
        }
    };
    let of_rule = |rule: &String| Reaction {
        user: user.clone(),
        uid,
        lineage: lineage.clone(),
        rule: rule.clone(),
        kind,
        by: actor.name.clone(),
        at_ns: actor.now_ns,
        until_ns,
    };
    let reactions: Vec<Reaction> = change.rules.iter().map(of_rule).collect();
    met_store::put_reactions(writer, &reactions, actor.now_ns)?.map_err(Failure::usage)
}

fn permit(viewer: &Viewer, job: Option<&Record>) -> Result<()> {
    match job {
        Some(record) if viewer.may_annotate(record) => Ok(()),
        Some(record) if viewer.sees(record) => {
            Err(Failure::usage("only its owner or an operator may mute findings of this job"))
        }
        _ => Err(no_such_job()),
    }
}

fn permit_user(viewer: &Viewer, user: &str) -> Result<()> {
    let is_own = match viewer {
        Viewer::Everything => true,
        Viewer::Uid(uid) => users::name_of(*uid).is_some_and(|name| name == user),
        Viewer::User { name, .. } => name == user,
    };
    match is_own {
        true => Ok(()),
        false => Err(Failure::usage("only an operator may mute findings about other users")),
    }
}

/// What the viewer may know of what was done.
pub fn seen(viewer: &Viewer, mut reactions: Vec<Reaction>) -> Vec<Reaction> {
    reactions.retain(|one| match viewer {
        Viewer::Everything => true,
        Viewer::Uid(uid) => one.uid == Some(*uid),
        Viewer::User { name, .. } => one.user == *name,
    });
    reactions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(viewer: Viewer) -> Actor {
        Actor { viewer, name: "somebody".to_owned(), now_ns: 1_000 }
    }

    fn owned(user: &str, uid: u32) -> Record {
        let mut record = met_core::sample::full(1, "train");
        (record.uid, record.user) = (Some(uid), Some(user.to_owned()));
        record.account = Some("physics".to_owned());
        record
    }

    fn change(record: &Record, step: ReactionStep) -> ReactionChange {
        ReactionChange {
            target: ReactionTarget::Job(record.key.clone()),
            rules: vec!["cpu_low".to_owned()],
            step,
        }
    }

    #[test]
    fn a_user_mutes_and_sees_findings_of_own_jobs_and_an_operator_those_of_all() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let record = owned("ada", 7);
        let mute = change(&record, ReactionStep::Mute { until_ns: None });
        let mut by = |viewer: Viewer| react(&mut writer, &actor(viewer), Some(&record), &mute);
        let member = Viewer::User { name: "bob".to_owned(), accounts: vec!["physics".to_owned()] };
        assert!(by(member).unwrap_err().to_string().contains("only its owner or an operator"));
        assert!(by(Viewer::user("eve")).unwrap_err().to_string().contains("no such job"));
        assert!(by(Viewer::Uid(8)).unwrap_err().to_string().contains("no such job"));
        assert!(
            by(Viewer::Uid(7)).is_ok() && by(Viewer::user("ada")).is_ok() && by(Viewer::Everything).is_ok()
        );
        let kept = met_store::reactions(&writer).unwrap();
        assert_eq!((kept.len(), kept[0].user.as_str(), kept[0].by.as_str()), (1, "ada", "somebody"));
        for (viewer, count) in [
            (Viewer::Everything, 1),
            (Viewer::Uid(7), 1),
            (Viewer::user("ada"), 1),
            (Viewer::Uid(8), 0),
            (Viewer::user("eve"), 0),
        ] {
            assert_eq!(seen(&viewer, kept.clone()).len(), count, "{viewer:?}");
        }
    }

    #[test]
    fn what_was_muted_can_be_taken_back_once() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let record = owned("ada", 7);
        let mut step = |step| {
            react(&mut writer, &actor(Viewer::Everything), Some(&record), &change(&record, step))
                .map_err(|error| error.to_string())
        };
        assert!(step(ReactionStep::Unmute).unwrap_err().contains("none of these findings"));
        step(ReactionStep::Sent).unwrap();
        assert!(step(ReactionStep::Unmute).is_err(), "a message that was sent stays sent");
        step(ReactionStep::Acknowledge).unwrap();
        step(ReactionStep::Mute { until_ns: Some(2_000) }).unwrap();
        assert!(step(ReactionStep::Mute { until_ns: Some(999) }).unwrap_err().contains("has passed"));
        step(ReactionStep::Unmute).unwrap();
        assert_eq!(met_store::reactions(&writer).unwrap().len(), 1);
    }

    #[test]
    fn findings_about_a_user_are_muted_by_that_user_or_an_operator() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let of_ada = ReactionChange {
            target: ReactionTarget::User("ada".to_owned()),
            rules: vec!["cores_unused".to_owned()],
            step: ReactionStep::Mute { until_ns: None },
        };
        let mut by = |viewer: Viewer| react(&mut writer, &actor(viewer), None, &of_ada);
        for refused in [Viewer::user("eve"), Viewer::Uid(u32::MAX - 7)] {
            assert!(by(refused).unwrap_err().to_string().contains("only an operator"));
        }
        assert!(by(Viewer::user("ada")).is_ok() && by(Viewer::Everything).is_ok());
        assert_eq!(met_store::reactions(&writer).unwrap()[0].lineage, "");
    }

    #[test]
    fn a_script_as_an_argument_is_remembered_and_too_many_mutes_are_refused() {
        let state = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(state.path()).unwrap();
        let mut record = owned("ada", 7);
        let mute = |record: &Record, writer: &mut Writer| {
            let change = change(record, ReactionStep::Mute { until_ns: None });
            react(writer, &actor(Viewer::Uid(7)), Some(record), &change).map_err(|error| error.to_string())
        };
        // Each of these takes six bytes.
        let unprintable = "\u{1}".repeat(400);
        record.command = vec![unprintable.clone(), unprintable];
        assert!(mute(&record, &mut writer).unwrap_err().contains("--lineage"));
        record.command = vec!["bash".to_owned(), "echo x; ".repeat(LINEAGE_BYTES_MAX)];
        mute(&record, &mut writer).unwrap();
        for number in 1..met_store::REACTIONS_PER_USER {
            record.command = vec![format!("program-{number}")];
            mute(&record, &mut writer).unwrap();
        }
        mute(&record, &mut writer).unwrap();
        record.command = vec!["one-more".to_owned()];
        assert!(mute(&record, &mut writer).unwrap_err().contains("met unmute"));
    }
}
