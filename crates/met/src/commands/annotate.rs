//! `met tag` and `met note`: what people say of a job.

use std::io::Write;

use anyhow::Result;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::job::Record;
use met_core::text;

use crate::cli::{NoteArgs, TagArgs};
use crate::output;
use met_config::Failure;
use met_query::jobs::AllJobs;
use met_query::setting::Setting;

pub fn tag(setting: &Setting, args: &TagArgs) -> Result<i32> {
    let change = tag_change(&args.changes)?;
    let (record, annotation) = annotated(setting, &args.job, &change)?;
    let tags = annotation.tags.into_iter().collect::<Vec<_>>().join(" ");
    let label = text::escape(&record.label());
    match tags.is_empty() {
        true => writeln!(output::stdout(), "Job {label} has no tags")?,
        false => writeln!(output::stdout(), "Tags of job {label}: {tags}")?,
    }
    Ok(0)
}

pub fn note(setting: &Setting, args: &NoteArgs) -> Result<i32> {
    let change = AnnotationChange { note: args.text.clone(), ..AnnotationChange::default() };
    let (record, annotation) = annotated(setting, &args.job, &change)?;
    let label = text::escape(&record.label());
    match (&args.text, annotation.note) {
        (Some(_), Some(_)) => writeln!(output::stdout(), "Note of job {label} saved")?,
        (Some(_), None) => writeln!(output::stdout(), "Note of job {label} removed")?,
        (None, None) => writeln!(output::stdout(), "Job {label} has no note")?,
        (None, Some(note)) => writeln!(output::stdout(), "{}", note.trim_end())?,
    }
    Ok(0)
}

/// The job and what people say of it, after a change if there is one.
fn annotated(setting: &Setting, job: &str, change: &AnnotationChange) -> Result<(Record, Annotation)> {
    let mut all = AllJobs::open(setting)?;
    let record = all.find(job)?;
    let annotation = match *change == AnnotationChange::default() {
        true => record.annotation.clone(),
        // Checked here as well, for a message without the name of a daemon.
        false => {
            change.apply(&record.annotation, 0).map_err(Failure::usage)?;
            all.annotate(&record.key, change)?
        }
    };
    Ok((record, annotation))
}

fn tag_change(words: &[String]) -> Result<AnnotationChange> {
    let mut change = AnnotationChange::default();
    for word in words {
        let (list, tag) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(tag), _) => (&mut change.add, tag),
            (_, Some(tag)) => (&mut change.remove, tag),
            _ => {
                return Err(Failure::usage(format!("{word:?}: write +TAG to add a tag, -TAG to remove one")));
            }
        };
        list.push(tag.to_owned());
    }
    Ok(change)
}
