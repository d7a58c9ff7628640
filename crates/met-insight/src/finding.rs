//! A finding: the one object that advice is, in reports, `met check`, JSON, pages and hooks.

use met_core::job::QualityKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::json::time;
use crate::lineage::Lineage;
use crate::report::Measure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Low,
    Medium,
    High,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Low => "low",
            Severity::Medium => "medium",
            Severity::High => "high",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: String,
    pub severity: Severity,
    /// A job's label, or a user's name.
    pub subject: String,
    pub user: Option<String>,
    /// Of which runs; `None` of a user's sum.
    pub lineage: Option<Lineage>,
    /// Unix nanoseconds.
    pub window_ns: (i64, i64),
    pub what: String,
    /// The numbers that it was concluded from.
    pub why: Vec<Evidence>,
    pub how: String,
    pub saving: Saving,
    /// Core-hours that the job held, GPU-hours by [`GPU_HOUR`]; `None` of a user's sum.
    pub held_core_hours: Option<f64>,
    /// The least coverage of its numbers over the window; 1 is all of it.
    pub coverage: f64,
}

/// A number of a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    pub name: &'static str,
    pub value: f64,
    pub measure: Measure,
    pub quality: QualityKind,
    pub coverage: Option<f64>,
}

/// What following the advice would have saved. What is not known is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saving {
    pub core_hours: Option<f64>,
    pub gpu_hours: Option<f64>,
    pub energy_joules: Option<f64>,
    pub emissions_grams: Option<f64>,
    pub money: Option<f64>,
}

/// What an hour of a GPU is worth in hours of a core where only one number can rank, and in gates.
pub const GPU_HOUR: f64 = 10.0;

impl Saving {
    /// For ranking only.
    pub fn weight(&self) -> f64 {
        self.core_hours.unwrap_or(0.0) + GPU_HOUR * self.gpu_hours.unwrap_or(0.0)
    }

    pub fn plus(&self, other: &Saving) -> Saving {
        self.with(other, |one, other| one + other)
    }

    /// Of two that may save the same.
    pub fn larger(&self, other: &Saving) -> Saving {
        self.with(other, f64::max)
    }

    fn with(&self, other: &Saving, of: fn(f64, f64) -> f64) -> Saving {
        let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(of(one, other)),
            (one, other) => one.or(other),
        };
        Saving {
            core_hours: both(self.core_hours, other.core_hours),
            gpu_hours: both(self.gpu_hours, other.gpu_hours),
            energy_joules: both(self.energy_joules, other.energy_joules),
            emissions_grams: both(self.emissions_grams, other.emissions_grams),
            money: both(self.money, other.money),
        }
    }
}

/// The most worthwhile first; equal ones by severity and name, so that the order is always the same.
pub fn rank(findings: &mut [Finding]) {
    findings.sort_by(|one, other| {
        let weight = |finding: &Finding| finding.saving.weight();
        (weight(other).total_cmp(&weight(one)))
            .then(other.severity.cmp(&one.severity))
            .then_with(|| (&one.rule, &one.subject).cmp(&(&other.rule, &other.subject)))
    });
}

/// A number behind a finding.
#[derive(Serialize)]
struct EvidenceObject<'a> {
    name: &'a str,
    value: f64,
    quality: &'static str,
    coverage_ratio: Option<f64>,
}

impl<'a> EvidenceObject<'a> {
    fn of(evidence: &'a Evidence) -> EvidenceObject<'a> {
        EvidenceObject {
            name: evidence.name,
            value: evidence.value,
            quality: evidence.quality.name(),
            coverage_ratio: evidence.coverage,
        }
    }
}

pub(crate) fn evidence_object(evidence: &Evidence) -> Value {
    json!(EvidenceObject::of(evidence))
}

/// A finding for a program. It is written as it is: `met check` has tens of thousands.
#[derive(Serialize)]
pub(crate) struct Object<'a> {
    rule: &'a str,
    severity: &'static str,
    subject: &'a str,
    user: Option<&'a str>,
    lineage: Option<String>,
    begin: Option<String>,
    end: Option<String>,
    what: &'a str,
    why: Vec<EvidenceObject<'a>>,
    how: &'a str,
    saving: SavingObject,
    coverage_ratio: f64,
    /// Why it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    muted: Option<Value>,
}

impl<'a> Object<'a> {
    pub fn of(finding: &'a Finding) -> Object<'a> {
        Object {
            rule: &finding.rule,
            severity: finding.severity.name(),
            subject: &finding.subject,
            user: finding.user.as_deref(),
            lineage: finding.lineage.as_ref().map(Lineage::to_string),
            begin: time(finding.window_ns.0),
            end: time(finding.window_ns.1),
            what: &finding.what,
            why: finding.why.iter().map(EvidenceObject::of).collect(),
            how: &finding.how,
            saving: SavingObject::of(&finding.saving),
            coverage_ratio: finding.coverage,
            muted: None,
        }
    }

    pub fn muted(self, why: Value) -> Object<'a> {
        Object { muted: Some(why), ..self }
    }
}

pub fn object(finding: &Finding) -> Value {
    json!(Object::of(finding))
}

/// What is not known is left out.
#[derive(Serialize)]
pub(crate) struct SavingObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    core_hours: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_hours: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    energy_joules: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    emissions_grams: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<f64>,
}

impl SavingObject {
    pub fn of(saving: &Saving) -> SavingObject {
        let Saving { core_hours, gpu_hours, energy_joules, emissions_grams, money } = *saving;
        SavingObject { core_hours, gpu_hours, energy_joules, emissions_grams, money }
    }
}

pub fn saving(saving: &Saving) -> Value {
    json!(SavingObject::of(saving))
}
