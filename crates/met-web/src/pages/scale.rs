//! How a job would run with more or fewer workers.

use maud::{Markup, html};
use met_core::job::Record;
use met_core::text::escape;
use met_core::units;
use met_insight::scale::{Fit, Plan, Prediction};
use met_query::jobs::Meant;

use super::layout::{self, Site, Tab};
use super::{Asked, Made};
use crate::api::Visible;
use crate::api::parameters::Given;
use crate::api::scale::{Planned, SCALE, planned};
use crate::problem::Problem;

pub(super) fn page(site: &Site, visible: &Visible<'_>, asked: &Asked) -> Result<Made, Problem> {
    let planned = Given::of(&asked.search, SCALE).and_then(|given| planned(visible, &asked.name, &given));
    match planned {
        Ok(planned) => {
            Ok(Made::Page(framed(site, asked, &planned.record, &content(&planned, visible.currency))))
        }
        // The form stays, with what was typed.
        Err(problem) if problem.field.as_deref().is_some_and(is_own) => {
            let (Meant::Job(record) | Meant::Step(record)) = visible.find(&asked.name)?;
            let notice = layout::notice("bad", &problem.reason);
            Ok(Made::Refused(framed(site, asked, &record, &notice)))
        }
        Err(problem) => Err(problem),
    }
}

fn is_own(field: &str) -> bool {
    SCALE.iter().any(|parameter| parameter.name == field)
}

fn framed(site: &Site, asked: &Asked, record: &Record, content: &Markup) -> Markup {
    let label = record.label();
    let field = |name: &str, label: &str, example: &str| {
        html! {
            div.field {
                label for={ "f-" (name) } { (label) }
                input id={ "f-" (name) } type="text" name=(name) value=(asked.get(name).unwrap_or("")) placeholder=(example) autocomplete="off" spellcheck="false" autocapitalize="none";
            }
        }
    };
    let page = html! {
        div.head {
            div { p.over { a href=(site.job_path(&label)) { "Job " (escape(&label)) } } h1 { "How " (escape(&record.name)) " would scale" } }
        }
        search {
            form.filter method="get" action={ (site.job_path(&label)) "/scale" } {
                div.fields {
                    (field("at", "Workers", "4, 8, 16"))
                    (field("target", "Time to reach", "30m"))
                    button type="submit" { "Predict" }
                }
            }
        }
        (content)
    };
    layout::page(site, Some(Tab::Jobs), &format!("How {} would scale", record.name), None, &page)
}

fn content(Planned { plan, left_out, warnings, .. }: &Planned, currency: &str) -> Markup {
    html! {
        @for warning in warnings { (layout::notice("warn", warning)) }
        (bounds(plan))
        (predictions(plan))
        (systems(&plan.systems, currency))
        @if !left_out.is_empty() {
            details { summary { (units::counted(left_out.len(), "job")) " left out" } ul { @for words in left_out { li { (escape(words)) } } } }
        }
    }
}

/// What follows from the run alone.
fn bounds(plan: &Plan) -> Markup {
    html! {
        @if let Some(bounds) = &plan.bounds {
            section aria-labelledby="bounds-title" {
                h2 id="bounds-title" { "From this run alone" }
                ul {
                    @for words in bounds.words().into_iter().chain(bounds.serial_words()) { li { (escape(&words)) } }
                }
            }
        }
    }
}

fn predictions(plan: &Plan) -> Markup {
    match &plan.scaling {
        Err(cannot) => html! {
            p.verdict { "Cannot say: " (escape(cannot.why)) }
            @if !cannot.run_next.is_empty() {
                p { "Run it next with " (cannot.run_next.iter().map(|size| units::cores(*size)).collect::<Vec<_>>().join(" and ")) " workers." }
            }
        },
        Ok(model) => html! {
            section aria-labelledby="predicted-title" {
                h2 id="predicted-title" { "From " (model.sizes.iter().map(|(.., runs)| runs).sum::<usize>()) " runs of " (model.sizes.len()) " sizes" }
                p {
                    "Serial share " (units::percent(model.serial.value)) " ("
                    (units::percent(model.serial.low)) " to " (units::percent(model.serial.high)) "); efficient up to "
                    (units::cores(model.efficient_size())) " workers."
                }
                div.scroll tabindex="0" role="group" aria-label="Predictions" {
                    table {
                        thead { tr { @for head in ["Workers", "Time", "95 % interval", "Speedup", "Energy"] { th.n scope="col" { (head) } } } }
                        tbody { @for one in &plan.predictions { (row(one)) } }
                    }
                }
                @if let Some((seconds, size)) = plan.target {
                    p {
                        (units::duration(seconds))
                        @match size {
                            Some(size) => { " is reached with " (units::cores(size)) " workers." }
                            None => { " is not reached with up to " (units::cores(model.size_max)) " workers." }
                        }
                    }
                }
            }
        },
    }
}

fn row(of: &Prediction) -> Markup {
    html! {
        tr {
            th.n scope="row" { (units::cores(of.size)) }
            @if let Some((seconds, speedup)) = of.seconds.as_ref().zip(of.speedup.as_ref()) {
                td.n { (units::duration(seconds.value)) }
                td.n { (units::duration(seconds.low)) " to " (units::duration(seconds.high)) }
                td.n { (format!("{:.2}", speedup.value)) }
                td.n { @if let Some(joules) = of.joules { "~" (units::watt_hours(joules)) } }
            } @else { td colspan="4" { span.dim { "cannot say: too far from the sizes that were run" } } }
        }
    }
}

fn systems(systems: &[Fit], currency: &str) -> Markup {
    html! {
        @if !systems.is_empty() {
            section aria-labelledby="systems-title" {
                h2 id="systems-title" { "Systems, if a core there is as fast as here" }
                ul {
                    @for fit in systems {
                        li {
                            strong { (escape(&fit.name)) } ": " (if fit.fits { "fits" } else { "does not fit" })
                            @if let Some((size, seconds)) = fit.size.zip(fit.seconds.as_ref()) {
                                ", " (units::duration(seconds.value)) " on " (units::cores(size)) " cores"
                            }
                            @if let Some(price) = fit.price { ", costs " (escape(&units::money_in(price, Some(currency)))) }
                            @for note in &fit.notes { "; " (escape(note)) }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_a_system_has_its_currency() {
        let fit = Fit {
            name: "fox".to_owned(),
            fits: true,
            notes: Vec::new(),
            size: None,
            seconds: None,
            price: Some(2.5),
        };
        assert!(systems(&[fit], "CHF").into_string().contains("fits, costs 2.50 CHF"));
    }
}
