//! What was done about findings.

use met_core::reaction::{Reaction, ReactionKind};

use met_store::{REACTIONS_PER_USER, clear_reactions, put_reactions, reactions};

use super::Place;

fn reaction(rule: &str, kind: ReactionKind, at_ns: i64, until_ns: Option<i64>) -> Reaction {
    Reaction {
        user: "o'neil".to_owned(),
        uid: Some(7),
        lineage: r#"["a\"b",null,"/x"]"#.to_owned(),
        rule: rule.to_owned(),
        kind,
        by: "root".to_owned(),
        at_ns,
        until_ns,
    }
}

pub(super) fn reactions_are_replaced_taken_back_and_forgotten_in_time(place: &Place) {
    let mut writer = place.writer();
    let first = reaction("cpu_low", ReactionKind::Muted, 1, None);
    let sent = reaction("cpu_low", ReactionKind::Sent, 1, None);
    put_reactions(&mut writer, &[first.clone(), sent.clone()], 1).unwrap().unwrap();
    assert_eq!(reactions(&writer).unwrap(), [first, sent.clone()]);
    let again = Reaction { by: "o'neil".to_owned(), ..reaction("cpu_low", ReactionKind::Muted, 5, Some(9)) };
    put_reactions(&mut writer, std::slice::from_ref(&again), 5).unwrap().unwrap();
    assert_eq!(reactions(&writer).unwrap(), [again.clone(), sent.clone()]);
    let (user, lineage, rules) = (again.user.as_str(), again.lineage.as_str(), ["cpu_low".to_owned()]);
    assert_eq!(clear_reactions(&mut writer, "eve", lineage, &rules).unwrap(), 0);
    assert_eq!(clear_reactions(&mut writer, user, "", &rules).unwrap(), 0);
    assert_eq!(clear_reactions(&mut writer, user, lineage, &rules).unwrap(), 1);
    assert_eq!(reactions(&writer).unwrap(), std::slice::from_ref(&sent));
    put_reactions(&mut writer, &[again], 5).unwrap().unwrap();
    let other = reaction("memory_excess", ReactionKind::Acknowledged, 10, None);
    put_reactions(&mut writer, std::slice::from_ref(&other), 10).unwrap().unwrap();
    assert_eq!(reactions(&writer).unwrap(), [sent, other.clone()], "one was muted for a time that is over");
    let newer =
        (0..2 * REACTIONS_PER_USER).map(|at| reaction(&format!("r{at}"), ReactionKind::Sent, 20 + at, None));
    let newer: Vec<Reaction> = newer.collect();
    put_reactions(&mut writer, &newer, 20).unwrap().unwrap();
    let known = reactions(&writer).unwrap();
    assert_eq!(known.len() as i64, 1 + REACTIONS_PER_USER, "the newest messages are remembered");
    assert!(known.contains(&other) && known.contains(newer.last().unwrap()) && !known.contains(&newer[0]));
}
