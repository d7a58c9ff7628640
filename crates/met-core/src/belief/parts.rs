//! Steps and tasks: measured by node and task, recorded by step.

use std::collections::HashMap;

use super::{finer, is_answer_to, is_measured};
use crate::hostlist::hosts;
use crate::job::{Part, Record};

/// The parts of a job. A node knows what its parts used, a scheduler what they are called and how they ended.
pub(super) fn believe(figures: &Record, older: &Record) -> Vec<Part> {
    let (base, other) = match is_measured(older) && !is_measured(figures) {
        true => (older, figures),
        false => (figures, older),
    };
    let word_of_other = word(base, other);
    let (mut parts, mut more) = (base.parts.clone(), Vec::new());
    let at: HashMap<Name, usize> = base.parts.iter().enumerate().map(|(at, part)| (name(part), at)).collect();
    for part in &other.parts {
        let exact = at.get(&name(part)).copied();
        if part.folded.is_some() {
            add_folded(&mut parts, exact, part, word_of_other == Word::Other);
            continue;
        }
        let of_step = others_of_step(&base.parts, exact, part);
        if exact.is_none() && (has_totals(part) || of_step.is_empty()) {
            more.push(part.clone());
        }
        if let Some(at) = exact {
            parts[at].totals.fill_from(&part.totals);
        }
        for at in exact.into_iter().chain(of_step) {
            describe(&mut parts[at], part, word_of_other);
        }
    }
    if !more.is_empty() {
        let word_of_base = word(other, base);
        parts.retain(|step| !describe_all(&mut more, step, word_of_base));
        parts.extend(more);
        parts.sort_by_key(|part| !part.step.is_empty() && !has_totals(part));
    }
    let is_measured = |part: &Part| part.folded.is_some() && part.task.is_none() && has_totals(part);
    if parts.iter().any(is_measured) {
        parts.retain(|part| part.folded.is_none() || has_totals(part));
    }
    parts
}

/// Describes the parts of a step. True where they take its place: it was recorded, and they were measured.
fn describe_all(parts: &mut [Part], step: &Part, word: Word) -> bool {
    let of_step = others_of_step(parts, None, step);
    let mut is_replaced = false;
    for at in of_step {
        is_replaced |= !has_totals(step) && parts[at].task.is_none() && has_totals(&parts[at]);
        describe(&mut parts[at], step, word);
    }
    is_replaced
}

type Name<'a> = (&'a str, &'a str, Option<&'a str>);

fn name(part: &Part) -> Name<'_> {
    (&part.node, &part.step, part.task.as_deref())
}

fn has_totals(part: &Part) -> bool {
    part.totals.iter().next().is_some()
}

/// Where the other parts are that belong to a step: those of its nodes, and its tasks.
fn others_of_step(parts: &[Part], exact: Option<usize>, step: &Part) -> Vec<usize> {
    if step.step.is_empty() || step.task.is_some() || step.folded.is_some() {
        return Vec::new();
    }
    let is_other =
        |at: usize, part: &Part| Some(at) != exact && part.folded.is_none() && part.step == step.step;
    let mut found: Vec<usize> =
        parts.iter().enumerate().filter(|(at, part)| is_other(*at, part)).map(|(at, _)| at).collect();
    if found.is_empty() {
        return found;
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let nodes: Vec<String> = hosts(&step.node).iter().map(|node| short(node)).collect();
    found.retain(|&at| parts[at].node == step.node || nodes.contains(&short(&parts[at].node)));
    found
}

/// Whose word on a step is a scheduler's.
#[derive(Clone, Copy, PartialEq)]
enum Word {
    /// That of the part which is described.
    Own,
    /// That of the one which describes it.
    Other,
    Neither,
}

fn word(own: &Record, other: &Record) -> Word {
    match (is_answer_to(other, own), is_answer_to(own, other) && is_measured(other)) {
        (true, _) => Word::Other,
        (false, true) => Word::Own,
        (false, false) => Word::Neither,
    }
}

/// Name, exit code and times of a step. A task has times of its own.
fn describe(part: &mut Part, step: &Part, word: Word) {
    if word == Word::Other {
        part.name = step.name.clone().or(part.name.take());
        part.exit_code = step.exit_code.or(part.exit_code);
    } else {
        part.name = part.name.take().or_else(|| step.name.clone());
        part.exit_code = part.exit_code.or(step.exit_code);
    }
    if part.task.is_some() && step.task.is_none() {
        return;
    }
    let time = |own_ns: Option<i64>, other_ns: Option<i64>| match word {
        Word::Own => finer(other_ns, own_ns),
        Word::Other => finer(own_ns, other_ns),
        Word::Neither => own_ns.or(other_ns),
    };
    part.start_ns = time(part.start_ns, step.start_ns);
    part.end_ns = time(part.end_ns, step.end_ns);
}

/// Steps without a line of their own: as a scheduler last counted them, unless nodes have measured theirs.
fn add_folded(parts: &mut Vec<Part>, exact: Option<usize>, folded: &Part, is_word: bool) {
    if has_totals(folded) {
        match exact {
            Some(at) => parts[at].totals.fill_from(&folded.totals),
            None => parts.push(folded.clone()),
        }
        return;
    }
    let is_recorded = |part: &Part| part.folded.is_some() && !has_totals(part);
    match parts.iter_mut().find(|part| is_recorded(part)) {
        Some(known) if is_word => known.clone_from(folded),
        Some(_) => {}
        None => parts.push(folded.clone()),
    }
}
