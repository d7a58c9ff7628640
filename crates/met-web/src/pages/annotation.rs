//! The form on the page of a job that writes its tags and its note; it works without the script.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Path};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use maud::{Markup, html};
use met_core::annotation::{AnnotationChange, NOTE_BYTES_MAX, TAGS_MAX};
use met_core::job::Record;

use super::{Pages, Site, job, layout, refused, revalidated};
use crate::api::{Visible, writes};
use crate::listener::Peer;
use crate::login::cross_site::CSRF_FIELD;
use crate::login::form::{field, is_form, parse};
use crate::problem::Problem;

/// A note twice, as it was and as it is, with every byte escaped.
const FORM_BYTES_MAX: usize = 32 << 10;

pub(super) fn routes(pages: &Arc<Pages>, router: Router) -> Router {
    let pages = Arc::clone(pages);
    let handler = post(
        move |Extension(peer): Extension<Peer>, headers: HeaderMap, Path(name): Path<String>, body: Body| {
            write(Arc::clone(&pages), peer, headers, name, body)
        },
    );
    router.route("/jobs/{name}/annotation", handler)
}

/// What the form says is changed: the other fields may have been changed by another user meanwhile.
fn change(fields: &[(String, String)]) -> AnnotationChange {
    let text = |name: &str| field(fields, name).unwrap_or_default();
    let tags = |name: &str| -> BTreeSet<String> {
        let words = text(name).split([' ', ',', '\t', '\r', '\n']).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    // Browsers send lines as terminals of old ended them.
    let note = |name: &str| text(name).replace("\r\n", "\n").trim_end().to_owned();
    let (before, after) = (tags("tags_before"), tags("tags"));
    AnnotationChange {
        add: after.difference(&before).cloned().collect(),
        remove: before.difference(&after).cloned().collect(),
        note: Some(note("note")).filter(|after| *after != note("note_before")),
    }
}

async fn write(pages: Arc<Pages>, peer: Peer, headers: HeaderMap, name: String, body: Body) -> Response {
    let mut site = pages.site();
    let admitted = match pages.api.admission.admit(&peer, &headers) {
        Ok(admitted) => admitted,
        Err(problem) => return refused(&site, problem),
    };
    peer.connection.mark_authenticated();
    (site.who, site.csrf) = (admitted.name, admitted.csrf);
    if !is_form(&headers) {
        return refused(&site, Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is not a form"));
    }
    let Ok(bytes) = to_bytes(body, FORM_BYTES_MAX).await else {
        return refused(&site, Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large"));
    };
    let fields = parse(&bytes);
    let change = change(&fields);
    let Some(turn) = pages.api.answers.turn(&admitted.client).await else {
        return refused(&site, Problem::unread());
    };
    let (asked, busy) = (Arc::clone(&pages), pages.site());
    let work = move || match writes::annotate(&asked.api, &admitted.viewer, &name, &change) {
        Ok(_) => to_job(&site, &name),
        Err(problem) if problem.status == StatusCode::BAD_REQUEST => {
            let typed = Typed::of(&fields, problem.reason);
            let visible = Visible::new(&admitted.viewer, &asked.api);
            match job::page_again(&site, &visible, name, &typed) {
                Ok(page) => (StatusCode::BAD_REQUEST, revalidated(page.into_response())).into_response(),
                Err(problem) => refused(&site, problem),
            }
        }
        Err(problem) => refused(&site, problem),
    };
    match pages.api.answers.write(turn, work).await {
        Some(response) => response,
        None => refused(&busy, Problem::busy()),
    }
}

/// A reload of the page that follows sends nothing again.
fn to_job(site: &Site, name: &str) -> Response {
    let location = HeaderValue::from_str(&format!("{}#annotation", site.job_path(name)));
    let location = location.unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

/// What the form holds: what is stored of the job, or what a user typed and was refused.
#[derive(Default)]
pub(super) struct Typed {
    tags: String,
    note: String,
    tags_before: String,
    note_before: String,
    /// Why it was refused.
    wrong: Option<String>,
}

impl Typed {
    fn of(fields: &[(String, String)], wrong: String) -> Typed {
        let text = |name: &str| field(fields, name).unwrap_or_default().to_owned();
        let [tags, note] = ["tags", "note"].map(text);
        let [tags_before, note_before] = ["tags_before", "note_before"].map(text);
        Typed { tags, note, tags_before, note_before, wrong: Some(wrong) }
    }

    fn written(record: &Record) -> Typed {
        let said = &record.annotation;
        let tags = said.tags.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        let note = said.note.clone().unwrap_or_default();
        Typed { tags_before: tags.clone(), note_before: note.clone(), tags, note, wrong: None }
    }
}

pub(super) fn form(site: &Site, record: &Record, typed: Option<&Typed>) -> Markup {
    let said = &record.annotation;
    let written = Typed::written(record);
    let typed = typed.unwrap_or(&written);
    let is_wrong = typed.wrong.is_some();
    let words =
        if said.tags.is_empty() && said.note.is_none() { "Add tags or a note" } else { "Edit tags and note" };
    html! {
        details.edit id="annotation" open[is_wrong] {
            summary { (words) }
            form method="post" action={ (site.job_path(&record.label())) "/annotation" } autocomplete="off" {
                @if let Some(csrf) = &site.csrf { input type="hidden" name=(CSRF_FIELD) value=(csrf); }
                @if let Some(wrong) = &typed.wrong { (layout::notice("bad", &format!("Not saved: {wrong}"))) }
                input type="hidden" name="tags_before" value=(typed.tags_before);
                input type="hidden" name="note_before" value=(typed.note_before);
                label for="edit-tags" { "Tags" }
                input id="edit-tags" name="tags" value=(typed.tags) spellcheck="false" aria-describedby="edit-tags-help" autofocus[is_wrong];
                p.dim id="edit-tags-help" { "Up to " (TAGS_MAX) ", separated by spaces: a-z, 0-9, dot, underscore and hyphen" }
                label for="edit-note" { "Note" }
                textarea id="edit-note" name="note" rows="4" maxlength=(NOTE_BYTES_MAX) { (typed.note) }
                button type="submit" { "Save" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(form: &str) -> AnnotationChange {
        change(&parse(form.as_bytes()))
    }

    #[test]
    fn what_was_refused_stays_in_the_form_with_the_reason() {
        let site = Site {
            base: "/".to_owned(),
            who: String::new(),
            csrf: None,
            has_logout: false,
            has_stream: false,
            is_file: false,
            now_ns: met_core::sample::NOW_NS,
            zone: jiff::tz::TimeZone::UTC,
        };
        let record = met_core::sample::full(1, "train");
        let fields = parse(b"tags_before=a&tags=a+B%21&note_before=&note=%3Cb%3Elong");
        let typed = Typed::of(&fields, "tags: \"B!\" is not a tag".to_owned());
        let form = form(&site, &record, Some(&typed)).into_string();
        assert!(form.contains("name=\"tags\" value=\"a B!\""), "{form}");
        assert!(form.contains("name=\"tags_before\" value=\"a\""), "{form}");
        assert!(form.contains("&lt;b&gt;long</textarea>"), "{form}");
        assert!(
            form.contains("Not saved: tags: ")
                && form.contains("<details class=\"edit\" id=\"annotation\" open>")
        );
        assert!(!super::form(&site, &record, None).into_string().contains("Not saved"));
    }

    #[test]
    fn only_what_was_edited_is_changed() {
        let form = "tags_before=a+b&tags=b%2C+c++c&note_before=one%0Atwo&note=one%0D%0Atwo%0D%0A";
        let expected = AnnotationChange { add: vec!["c".into()], remove: vec!["a".into()], note: None };
        assert_eq!(changed(form), expected);
        let emptied = changed("tags_before=&tags=&note_before=x&note=+");
        assert_eq!(emptied, AnnotationChange { note: Some(String::new()), ..AnnotationChange::default() });
        assert_eq!(changed(""), AnnotationChange::default());
    }
}
