//! PromQL from and back: which series are asked for, and what the answer says.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::Read;

use met_core::series::Series;
use met_core::{MISSING, Table};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Selects series by part of their name and by labels; an empty label is one that is not there.
pub(crate) fn selector(names: &str, labels: &[(&str, &str)]) -> String {
    let mut text = format!("{{__name__=~\"{names}\"");
    for (name, value) in labels {
        text.push_str(&format!(",{name}=\""));
        for letter in value.chars() {
            match letter {
                '\\' | '"' => text.extend(['\\', letter]),
                '\n' => text.push_str("\\n"),
                _ => text.push(letter),
            }
        }
        text.push('"');
    }
    text.push('}');
    text
}

/// A series of an answer: the name, and samples by unix milliseconds.
#[derive(Deserialize)]
struct Answered {
    metric: Metric,
    values: Vec<Point>,
}

#[derive(Deserialize)]
struct Metric {
    #[serde(rename = "__name__", default)]
    name: String,
}

struct Point(i64, f64);

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Point, D::Error> {
        let (time_s, Decimal(value)) = <(f64, Decimal)>::deserialize(from)?;
        Ok(Point((time_s * 1000.0).round() as i64, value))
    }
}

/// A number that is written as a text.
struct Decimal(f64);

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Decimal, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Decimal;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a number in a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map(Decimal).map_err(|_| E::custom("a value is not a number"))
            }
        }
        from.deserialize_str(Text)
    }
}

/// The label of a part of a machine.
pub(crate) const PART: &str = "part";

#[derive(Deserialize)]
struct Names {
    data: Vec<Name>,
}

#[derive(Deserialize)]
struct Name {
    #[serde(rename = "__name__", default)]
    name: String,
    #[serde(default)]
    part: String,
}

/// Which parts of these tables there are, by the names of their series.
pub(crate) fn read_parts(
    body: impl Read,
    tables: &[&'static Table],
) -> Result<BTreeSet<(String, String)>, String> {
    let Names { data } = serde_json::from_reader(body).map_err(|error| error.to_string())?;
    let mut tables_by_name: HashMap<String, &str> = HashMap::new();
    for table in tables {
        let names = table.columns.iter().map(|column| (table.prometheus_name(column), table.name));
        tables_by_name.extend(names);
    }
    let known = |found: Name| Some(((*tables_by_name.get(&found.name)?).to_owned(), found.part));
    Ok(data.into_iter().filter_map(known).collect())
}

/// The cells of a series as they come: column by column, each with times of its own.
struct Cells {
    table: &'static Table,
    names: Vec<String>,
    columns: Vec<Vec<(i64, i64)>>,
}

impl Cells {
    fn take(&mut self, series: Answered) {
        // A series that this version does not know came from another one.
        let Some(column) = self.names.iter().position(|name| *name == series.metric.name) else { return };
        let known =
            |Point(time_ms, value): Point| Some((time_ms, self.table.columns[column].unscaled(value)?));
        self.columns[column].extend(series.values.into_iter().filter_map(known));
    }

    fn into_series(mut self) -> Series {
        let mut times_ms: Vec<i64> = Vec::new();
        for cells in &mut self.columns {
            // Some engines give a sample twice that came twice.
            cells.sort_by_key(|&(time_ms, _)| time_ms);
            cells.dedup_by_key(|&mut (time_ms, _)| time_ms);
            times_ms.extend(cells.iter().map(|&(time_ms, _)| time_ms));
            times_ms.sort_unstable();
            times_ms.dedup();
        }
        let column = |cells: &Vec<(i64, i64)>| {
            let mut cells = cells.iter().peekable();
            let at = |&time_ms: &i64| {
                cells.next_if(|(known_ms, _)| *known_ms == time_ms).map_or(MISSING, |&(_, cell)| cell)
            };
            times_ms.iter().map(at).collect()
        };
        let columns = self.columns.iter().map(column).collect();
        Series { table: self.table, times_ms, columns, spreads: None }
    }
}

/// The series in the answer to a query for raw samples. It is read as it comes: one series is held at a time.
pub(crate) fn read_series(body: impl Read, table: &'static Table) -> Result<Series, String> {
    let mut cells = Cells {
        table,
        names: table.columns.iter().map(|column| table.prometheus_name(column)).collect(),
        columns: vec![Vec::new(); table.columns.len()],
    };
    let mut json = serde_json::Deserializer::from_reader(body);
    let found = Answer(&mut cells).deserialize(&mut json).map_err(|error| error.to_string())?;
    if !found {
        return Err("the reply has no series".to_owned());
    }
    Ok(cells.into_series())
}

/// `{"status": …, "data": {"resultType": "matrix", "result": [series, …]}}`; says whether there was a result.
struct Answer<'c>(&'c mut Cells);

impl<'de> DeserializeSeed<'de> for Answer<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Answer<'_> {
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an answer of the query API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "data" => found |= map.next_value_seed(Answer(self.0))?,
                "result" => {
                    map.next_value_seed(Results(self.0))?;
                    found = true;
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

struct Results<'c>(&'c mut Cells);

impl<'de> DeserializeSeed<'de> for Results<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Results<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(series) = list.next_element::<Answered>()? {
            self.0.take(series);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use met_core::JOB;
    use met_core::job_table::{CPU, MEMORY_NEEDED};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_label_holds_stays_in_it() {
        let labels = [("id", "a\"} or up{b=\"\\\n"), ("cluster", "")];
        assert_eq!(
            selector("met_job_.+", &labels),
            r#"{__name__=~"met_job_.+",id="a\"} or up{b=\"\\\n",cluster=""}"#
        );
    }

    #[test]
    fn series_with_times_of_their_own_become_one_series() {
        let answer = r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"met_job_cpu_seconds_total","id":"7"},
             "values":[[1794700800.001,"0.5"],[1794700802,"1e0"],[1794700802,"1"]]},
            {"metric":{"__name__":"met_job_unheard_of"},"values":[[1794700800,"1"]]},
            {"values":[[1794700803,"4096"],[1794700802,"NaN"],[1794700801,"8192"]],
             "metric":{"__name__":"met_job_memory_needed_bytes"}}
        ]},"isPartial":false}"#;
        let series = read_series(answer.as_bytes(), &JOB).unwrap();
        let second = 1_794_700_800_000;
        assert_eq!(series.times_ms, [second + 1, second + 1000, second + 2000, second + 3000]);
        assert_eq!(series.columns[CPU], [500_000_000, MISSING, 1_000_000_000, MISSING]);
        assert_eq!(series.columns[MEMORY_NEEDED], [MISSING, 8192, MISSING, 4096]);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in ["", "{}", "[]", r#"{"status":"error","error":"no"}"#, r#"{"data":{"result":[{}]}}"#] {
            assert!(read_series(text.as_bytes(), &JOB).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(text in ".{0,300}") {
            let _ = read_series(text.as_bytes(), &JOB);
            let inside = format!(r#"{{"data":{{"result":[{{"metric":{{}},"values":[{text}]}}]}}}}"#);
            let _ = read_series(inside.as_bytes(), &JOB);
        }

        #[test]
        fn times_are_in_order_and_every_column_is_full(
            points in prop::collection::vec((0usize..6, 0i64..40, -1000i64..1000), 0..60),
        ) {
            let answers = points.iter().map(|(column, time_s, value)| {
                let name = JOB.prometheus_name(&JOB.columns[*column]);
                format!(r#"{{"metric":{{"__name__":"{name}"}},"values":[[{time_s},"{value}"]]}}"#)
            });
            let list = answers.collect::<Vec<_>>().join(",");
            let answer = format!(r#"{{"data":{{"result":[{list}]}}}}"#);
            let series = read_series(answer.as_bytes(), &JOB).unwrap();
            prop_assert!(series.times_ms.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(series.columns.iter().all(|cells| cells.len() == series.len()));
            let expected: std::collections::BTreeSet<(usize, i64)> =
                points.iter().map(|&(column, time_s, _)| (column, time_s * 1000)).collect();
            let cells = series.columns.iter().flatten().filter(|&&cell| cell != MISSING).count();
            prop_assert_eq!(cells, expected.len());
        }
    }
}
