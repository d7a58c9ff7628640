//! The figures of a job: totals, each with how it came to be, and the series of columns in five numbers.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::named;
use crate::JOB;
use crate::provenance::Provenance;

named! {
    /// How a figure came to be; what is further down is known less well.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum QualityKind {
        /// The difference of a counter that covers the whole job.
        Measured = "measured",
        /// The largest, last or mean of samples; what happened between them is not included.
        Sampled = "sampled",
        /// A share of a total measured for several jobs.
        Attributed = "attributed",
        Estimated = "estimated",
        /// At least this much.
        LowerBound = "lower_bound",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    pub value: i64,
    pub kind: QualityKind,
    pub source: Provenance,
}

/// What is known by column of the job table, in its order. A job has some thirty, and there are many jobs: one after the
/// other they take half of the memory of a tree.
#[derive(Clone, Debug, PartialEq)]
struct ByColumn<T>(Vec<(usize, T)>);

impl<T> Default for ByColumn<T> {
    fn default() -> ByColumn<T> {
        ByColumn(Vec::new())
    }
}

impl<T> ByColumn<T> {
    fn place(&self, column: usize) -> Result<usize, usize> {
        match self.0.last() {
            // They mostly come in order.
            Some(&(last, _)) if last < column => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&column, |&(known, _)| known),
        }
    }

    fn get(&self, column: usize) -> Option<&T> {
        self.place(column).ok().map(|at| &self.0[at].1)
    }

    fn set(&mut self, column: usize, value: T) {
        match self.place(column) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (column, value)),
        }
    }

    fn remove(&mut self, column: usize) {
        if let Ok(at) = self.place(column) {
            self.0.remove(at);
        }
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().map(|(column, value)| (*column, value))
    }
}

/// The known totals of a job, by column of the job table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    figures: ByColumn<Figure>,
}

impl Totals {
    pub fn get(&self, column: usize) -> Option<i64> {
        self.figures.get(column).map(|figure| figure.value)
    }

    pub fn figure(&self, column: usize) -> Option<&Figure> {
        self.figures.get(column)
    }

    /// Before so many are set.
    pub fn reserve(&mut self, count: usize) {
        self.figures.0.reserve_exact(count);
    }

    pub fn set(&mut self, column: usize, value: i64, kind: QualityKind, source: impl Into<Provenance>) {
        self.figures.set(column, Figure { value, kind, source: source.into() });
    }

    /// Takes over what `other` knows and this does not.
    pub fn fill_from(&mut self, other: &Totals) {
        for (column, figure) in other.figures.iter() {
            if self.figures.get(column).is_none() {
                self.figures.set(column, figure.clone());
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.figures.0.is_empty()
    }

    pub fn remove(&mut self, column: usize) {
        self.figures.remove(column);
    }

    /// Of a job that went on: what is known so far is the least it can be.
    pub fn set_lower_bounds(&mut self) {
        self.figures.values_mut().for_each(|figure| figure.kind = QualityKind::LowerBound);
    }

    /// Where each of them is said to come from.
    pub(crate) fn sources_mut(&mut self) -> impl Iterator<Item = &mut Provenance> {
        self.figures.values_mut().map(|figure| &mut figure.source)
    }

    /// In the order of the job table.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Figure)> {
        self.figures.iter()
    }
}

/// The series of one column in five numbers, in the column's sub-unit. Counters: of their growth per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Weighted by time.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Known when the job is over and every sample is at hand.
    pub p50: Option<f64>,
    pub p95: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summaries {
    by_column: ByColumn<Summary>,
}

impl Summaries {
    pub fn get(&self, column: usize) -> Option<&Summary> {
        self.by_column.get(column)
    }

    pub fn set(&mut self, column: usize, summary: Summary) {
        self.by_column.set(column, summary);
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Summary)> {
        self.by_column.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.by_column.0.is_empty()
    }
}

// On disk and on the socket a column goes by its name: a position would change its meaning with the table.
fn serialize_by_name<T: Serialize, S: Serializer>(map: &ByColumn<T>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(map.iter().map(|(column, value)| (JOB.columns[column].name, value)))
}

// A name that this version does not know came from a newer one, and is left out.
fn deserialize_by_name<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<ByColumn<T>, D::Error> {
    from.deserialize_map(ByName(PhantomData))
}

/// Reads values by column; of a name that comes twice the later one counts.
struct ByName<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ByName<T> {
    type Value = ByColumn<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a map")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut by_column = ByColumn::default();
        while let Some(Named(column)) = map.next_key()? {
            let value = map.next_value()?;
            if let Some(column) = column {
                by_column.set(column, value);
            }
        }
        Ok(by_column)
    }
}

/// The column of a name, found without a copy of it.
struct Named(Option<usize>);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Named, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Named;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Named, E> {
                Ok(Named(JOB.column(name)))
            }
        }
        from.deserialize_str(Name)
    }
}

impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_by_name(&self.figures, to)
    }
}

impl<'de> Deserialize<'de> for Totals {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Totals { figures: deserialize_by_name(from)? })
    }
}

impl Serialize for Summaries {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_by_name(&self.by_column, to)
    }
}

impl<'de> Deserialize<'de> for Summaries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Summaries { by_column: deserialize_by_name(from)? })
    }
}
