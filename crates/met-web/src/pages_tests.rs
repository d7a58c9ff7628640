use axum::body::{Body, to_bytes};
use axum::http::Request;
use met_core::annotation::{Annotation, AnnotationChange};
use met_core::gpu::device;
use met_core::job::{GpuUse, JobKey, Record, State};
use met_core::job_processes::JobProcess;
use met_core::job_table as column;
use met_core::listing::Cursor;
use met_core::sample;
use met_core::series::Series;
use met_query::annotate::Annotates;
use met_query::jobs::{JobRef, JobsFilter};
use met_query::protocol::NodeStatus;
use met_query::query::Query;
use met_query::viewer::Viewer;
use met_store::Page;
use tower_service::Service;

use met_host::Host;

use super::*;
use crate::api::{Admission, Output, Tail};

/// What programs, people and machines may be called: it ends markup, hides, reorders, or is a link.
const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "a\x1b[2Jb\nc",
    "x\u{202e}gpj.exe",
    "javascript:alert(1)",
    "</title></script><svg/onload=alert(1)>",
];

struct Jobs(Vec<Record>);

impl Query for Jobs {
    fn jobs(&self, viewer: &Viewer, filter: &JobsFilter) -> anyhow::Result<(Page, Vec<String>)> {
        let Some(filter) = viewer.restrict(filter) else { return Ok(met_query::query::nothing()) };
        let mut jobs = self.0.clone();
        jobs.retain(|record| viewer.sees(record));
        jobs.retain(|record| filter.states.is_empty() || filter.states.contains(&record.state));
        let limit = filter.page.limit.unwrap_or(usize::MAX);
        let next = (jobs.len() > limit).then(|| Cursor::of(&jobs[limit - 1]));
        jobs.truncate(limit);
        Ok((Page { jobs, next }, vec![HOSTILE[0].to_owned()]))
    }

    fn find(&self, viewer: &Viewer, job: &JobRef, _: Option<&Cursor>) -> anyhow::Result<Page> {
        let JobRef::Id { id, .. } = job else { return Ok(Page { jobs: Vec::new(), next: None }) };
        let is_meant = |record: &&Record| record.key.id == *id && viewer.sees(record);
        Ok(Page { jobs: self.0.iter().filter(is_meant).cloned().collect(), next: None })
    }

    fn series(&self, _: &Viewer, _: &JobKey, after_ms: i64) -> anyhow::Result<Series> {
        let series = sample::series();
        Ok(if after_ms < series.times_ms[0] { series } else { Series::new(&met_core::JOB) })
    }

    fn gpu_series(&self, _: &Viewer, _: &JobKey, _: &str, _: i64) -> anyhow::Result<Series> {
        Ok(Series::new(&device::TABLE))
    }

    fn nodes(&self, _: &Viewer) -> anyhow::Result<Vec<NodeStatus>> {
        let node = |(number, name): (usize, &&str)| NodeStatus {
            name: (*name).to_owned(),
            late: number == 1,
            cpus: Some(8),
            problem: (number == 2).then(|| HOSTILE[1].to_owned()),
            version: Some(HOSTILE[0].to_owned()),
            ..NodeStatus::default()
        };
        Ok(HOSTILE.iter().enumerate().map(node).collect())
    }
}

/// Trusts the name in `From`.
struct Named;

impl Admission for Named {
    fn admit(&self, _: &Peer, headers: &HeaderMap) -> Result<Admitted, Problem> {
        let name = headers.get("From").and_then(|name| name.to_str().ok());
        let name = name.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "who are you?"))?;
        match name {
            "operator" => Ok(Admitted::operator(name)),
            "member" => {
                let viewer =
                    Viewer::User { name: name.to_owned(), accounts: vec!["lab-of-member".to_owned()] };
                Ok(Admitted { viewer, ..Admitted::user(name) })
            }
            // A node's token, a session that has expired, an operator who is none any more without being a user.
            "node" | "expired" => Err(Problem::new(StatusCode::FORBIDDEN, "not for you")),
            _ => Ok(Admitted::user(name)),
        }
    }
}

fn hostile_jobs() -> Vec<Record> {
    let job = |(number, text): (usize, &&str)| {
        let mut record = sample::scheduled();
        let text = || (*text).to_owned();
        (record.key.id, record.scheduling.alias) = (number.to_string(), None);
        (record.name, record.user, record.account) = (text(), Some(text()), Some(text()));
        record.state = if number % 2 == 0 { State::Running } else { State::Failed };
        record.command = vec![text(), text()];
        record.nodes = vec![text()];
        record.manager_state = Some(text());
        (record.scheduling.partition, record.scheduling.reason) = (Some(text()), Some(text()));
        record
            .parts
            .iter_mut()
            .for_each(|part| (part.node, part.name, part.task) = (text(), Some(text()), Some(text())));
        record.gpus = vec![GpuUse {
            uuid: text(),
            index: text(),
            name: text(),
            held_by: text().into(),
            memory_peak_bytes: Some(1 << 30),
            ..GpuUse::default()
        }];
        record.processes = vec![JobProcess {
            pid: 7,
            command: text(),
            command_line: vec![text()],
            cpu_ns: Some(5),
            ..JobProcess::default()
        }];
        record
    };
    HOSTILE.iter().enumerate().map(job).collect()
}

struct Unwritable;

impl Annotates for Unwritable {
    fn annotate(&self, _: &Viewer, _: &JobKey, _: &AnnotationChange) -> anyhow::Result<Annotation> {
        anyhow::bail!("nothing is written here")
    }
}

impl Output for Unwritable {
    fn tails(&self, _: &Record) -> Vec<Tail> {
        let tail = |text: &&str| Tail { path: (*text).to_owned(), text: (*text).to_owned(), is_cut: true };
        HOSTILE.iter().map(tail).collect()
    }
}

fn get_from(jobs: Vec<Record>, from: Option<&str>, path: &str) -> (StatusCode, HeaderMap, String) {
    let api = Api {
        query: Arc::new(Jobs(jobs)),
        admission: Arc::new(Named),
        answers: Arc::default(),
        layouts: Vec::new(),
        live: Arc::default(),
        annotates: Arc::new(Unwritable),
        output: Some(Arc::new(Unwritable)),
        host: Host::real().ok(),
        systems: Arc::default(),
        currency: "CHF".to_owned(),
    };
    let pages = Pages { api: Arc::new(api), base: "/".to_owned(), has_logout: true };
    let mut request = Request::builder().uri(path);
    if let Some(from) = from {
        request = request.header("From", from);
    }
    let peer = Peer::at(([127, 0, 0, 1], 1).into());
    let request = request.extension(peer).body(Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let response = router(Arc::new(pages)).call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    })
}

/// What a browser would see as tags and attributes, roughly: every tag of a page.
fn tags(page: &str) -> Vec<&str> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find('<') {
        rest = &rest[begin..];
        let mut quote = None;
        let end = rest.find(|c: char| {
            match (quote, c) {
                (None, '"') => quote = Some('"'),
                (Some('"'), '"') => quote = None,
                _ => {}
            }
            c == '>' && quote.is_none()
        });
        let end = end.map_or(rest.len(), |end| end + 1);
        tags.push(&rest[..end]);
        rest = &rest[end..];
    }
    tags
}

fn check_harmless(path: &str, page: &str) {
    for tag in tags(page) {
        let name = tag.trim_start_matches(['<', '/']).split([' ', '>']).next().unwrap();
        assert!(!["img", "iframe", "object", "embed", "base"].contains(&name), "{path}: {tag}");
        if name == "script" && !tag.starts_with("</") {
            assert!(
                tag.contains(" src=\"/assets/") || tag.contains("type=\"application/json\""),
                "{path}: {tag}"
            );
        }
        // What is inside quotes is text, but for addresses.
        let names: String = tag.split('"').step_by(2).collect::<Vec<_>>().join("\"").to_ascii_lowercase();
        for bad in [" style=", " onload", " onerror", " onclick"] {
            assert!(!names.contains(bad), "{path}: {tag}");
        }
        for bad in ["href=\"javascript:", "src=\"javascript:"] {
            assert!(!tag.to_ascii_lowercase().contains(bad), "{path}: {tag}");
        }
    }
    assert!(!page.contains('\x1b') && !page.contains('\u{202e}'), "{path}: control characters");
    assert_eq!(page.matches("</title>").count(), page.matches("<title").count(), "{path}");
}

#[test]
fn foreign_text_is_shown_harmless_on_every_page() {
    let nodes: Vec<String> =
        HOSTILE.iter().map(|name| format!("/nodes/{}", layout::percent_encoded(name))).collect();
    let search = layout::search([("name", HOSTILE[1]), ("user", HOSTILE[0])]);
    let mut paths = vec!["/".to_owned(), "/jobs".to_owned(), "/nodes".to_owned(), format!("/jobs?{search}")];
    let every =
        list_columns::COLUMNS.iter().map(list_columns::ListColumn::name).collect::<Vec<_>>().join(",");
    paths.push(format!("/jobs?columns={every}"));
    paths.extend((0..HOSTILE.len()).map(|number| format!("/jobs/slurm:{number}")));
    paths.push("/compare?jobs=slurm:0,slurm:1,slurm:2,slurm:3,slurm:4,slurm:5".to_owned());
    paths.extend(["/usage", "/findings", "/findings?since=1d&user=%3Cscript%3E", "/who"].map(str::to_owned));
    paths.extend((0..HOSTILE.len()).map(|number| format!("/jobs/slurm:{number}/scale?at=2,4&target=1m")));
    paths.extend(nodes);
    for path in paths {
        let (status, _, page) = get_from(hostile_jobs(), Some("operator"), &path);
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        check_harmless(&path, &page);
    }
    for path in [
        "/jobs/%3Cscript%3Ealert(1)",
        "/nodes/%3Cscript%3E",
        "/jobs?limit=%3Cscript%3E",
        "/findings?since=%3Cscript%3E",
        "/jobs/slurm:1/scale?at=%3Cscript%3E",
        "/nodes?%3Cscript%3E=1",
    ] {
        let (_, _, page) = get_from(hostile_jobs(), Some("operator"), path);
        check_harmless(path, &page);
        assert!(!page.contains("<script>alert"), "{path}");
    }
}

#[test]
fn a_file_holds_its_style_and_script_and_loads_nothing() {
    let record = &hostile_jobs()[5];
    let (charts, span) = charts_of(record, sample::NOW_NS, |table, _| {
        Ok(if table.name == met_core::JOB.name { sample::series() } else { Series::new(table) })
    })
    .unwrap();
    assert!(!charts.is_empty());
    let shown = Shown { record, machine: Default::default(), charts, span, answers: None };
    let page = file(&shown, sample::NOW_NS, TimeZone::UTC).into_string();
    for tag in tags(&page) {
        assert!(!tag.contains(" src=") && !tag.contains("http://") && !tag.contains("https://"), "{tag}");
        assert!(!tag.contains("href=\"/"), "{tag}");
    }
    assert!(page.contains("default-src 'none'; img-src data:; style-src 'sha256-"));
    let inside = |begin: &str, end: &str| {
        let from = page.find(begin).unwrap() + begin.len();
        page[from..from + page[from..].find(end).unwrap()].to_owned()
    };
    for (begin, end) in [("<style>", "</style>"), ("<script type=\"module\">", "</script>")] {
        assert!(page.contains(&assets::integrity(&inside(begin, end))), "{begin}: its hash is in the policy");
    }
    assert!(!page.contains("<script>alert") && !page.contains('\u{202e}'));
}

#[test]
fn strangers_see_no_page_and_users_their_own_jobs() {
    let mut jobs: Vec<Record> = (1..=4).map(|id| sample::full(id, &format!("job{id}"))).collect();
    for (record, user) in jobs.iter_mut().zip(["ada", "bob", "ada", "bob"]) {
        record.user = Some(user.to_owned());
    }
    for path in ["/", "/jobs", "/jobs/1", "/jobs/1/job.html", "/nodes", "/nodes/x"] {
        let (status, headers, page) = get_from(jobs.clone(), None, path);
        assert_eq!((status, page.contains("job1")), (StatusCode::UNAUTHORIZED, false), "{path}");
        assert!(headers.contains_key(header::WWW_AUTHENTICATE));
    }
    let (_, _, page) = get_from(jobs.clone(), Some("ada"), "/jobs");
    assert!(page.contains("job1") && page.contains("job3") && !page.contains("job2"), "{page}");
    for path in ["/jobs/2", "/jobs/2/job.html"] {
        assert_eq!(get_from(jobs.clone(), Some("ada"), path).0, StatusCode::NOT_FOUND);
    }
    assert_eq!(get_from(jobs, Some("operator"), "/jobs/2").0, StatusCode::OK);
}

#[test]
fn own_jobs_come_first_where_jobs_of_others_are_listed() {
    let mut jobs: Vec<Record> = (1..=3).map(|id| sample::full(id, &format!("job{id}"))).collect();
    jobs.iter_mut().for_each(|record| record.user = Some("operator".to_owned()));
    let page = |jobs: &[Record]| get_from(jobs.to_vec(), Some("operator"), "/jobs").2;
    assert!(!page(&jobs).contains("All jobs"), "each row once");
    jobs[1].user = Some("bob".to_owned());
    assert!(page(&jobs).contains("Yours") && page(&jobs).contains("All jobs"));
}

#[test]
fn no_class_of_the_header_is_one_of_a_table() {
    let header = get_from(vec![sample::full(1, "job")], Some("operator"), "/nodes").2;
    let header = &header[header.find("<header").unwrap()..header.find("</header>").unwrap()];
    let classes = |page: &str| -> Vec<String> {
        let values = page.split("class=\"").skip(1).filter_map(|rest| rest.split('"').next());
        values.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    for path in ["/who", "/nodes", "/jobs"] {
        let page = get_from(vec![sample::full(1, "job")], Some("operator"), path).2;
        assert!(page.contains("<table"), "{path}");
        for table in page.split("<table").skip(1).filter_map(|rest| rest.split('>').next()) {
            assert!(!classes(table).iter().any(|class| classes(header).contains(class)), "{path}: {table}");
        }
    }
}

/// Each route with a job or node that is not the viewer's, and addresses that would show others by a filter.
fn every_page(job: &str) -> Vec<String> {
    let mut paths: Vec<String> = paths().map(|path| path.replace("{name}", job)).collect();
    paths.extend([
        format!("/compare?jobs={job}"),
        format!("/compare?jobs=own,{job}"),
        "/jobs?user=bob".to_owned(),
        "/jobs?sort=cpu:desc&columns=job,name,user,account,command".to_owned(),
        "/jobs?name=secret".to_owned(),
        "/usage?by=user".to_owned(),
        "/usage?by=command".to_owned(),
    ]);
    paths
}

#[test]
fn no_page_shows_what_is_not_the_viewers() {
    let mut jobs: Vec<Record> = [1, 2].map(|id| sample::full(id, "secret-name")).into();
    for (record, account) in jobs.iter_mut().zip(["lab-of-member", "other-lab"]) {
        (record.user, record.account) = (Some("bob".to_owned()), Some(account.to_owned()));
        record.command = vec!["secret-command".to_owned()];
    }
    jobs[1].name = "hidden-name".to_owned();
    let secrets = ["secret-name", "hidden-name", "secret-command", "lab-of-member", "other-lab", "bob"];
    for path in every_page("2") {
        for (who, status) in [
            (None, StatusCode::UNAUTHORIZED),
            (Some("node"), StatusCode::FORBIDDEN),
            (Some("expired"), StatusCode::FORBIDDEN),
        ] {
            let (got, _, page) = get_from(jobs.clone(), who, &path);
            assert_eq!(got, status, "{who:?} {path}");
            assert!(!secrets.iter().any(|secret| page.contains(secret)), "{who:?} {path}: {page}");
        }
        let (status, _, page) = get_from(jobs.clone(), Some("eve"), &path);
        assert!(status == StatusCode::OK || status.is_client_error(), "{path}: {status}");
        // What the address itself says is the viewer's own word.
        let mut unknown =
            secrets.iter().filter(|secret| !path.contains(*secret) && !path.contains("=secret"));
        assert!(!unknown.any(|secret| page.contains(secret)), "eve {path}: {page}");
        let (_, _, page) = get_from(jobs.clone(), Some("member"), &path);
        assert!(!page.contains("hidden-name") && !page.contains("other-lab"), "member {path}: {page}");
    }
    let (_, _, page) = get_from(jobs.clone(), Some("member"), "/jobs");
    assert!(page.contains("secret-name") && page.contains(">Mine<"), "the jobs of the account: {page}");
    assert!(!get_from(jobs, Some("eve"), "/jobs").2.contains(">Mine<"));
}

#[test]
fn a_list_that_cannot_be_made_is_a_bad_request_with_its_form() {
    for search in ["limit=0", "limit=-5", "limit=99999999999", "limit=x", "since=never", "nosuch=1"] {
        let (status, _, page) = get_from(Vec::new(), Some("operator"), &format!("/jobs?{search}"));
        assert_eq!(status, StatusCode::BAD_REQUEST, "{search}");
        assert!(page.contains("id=\"filter\""), "{search}: {page}");
    }
    assert_eq!(get_from(Vec::new(), Some("operator"), "/usage?since=never").0, StatusCode::BAD_REQUEST);
}

#[test]
fn pages_are_asked_for_again_and_assets_stay_for_ever() {
    let ok = format!("/assets/{}", assets::ASSETS.script.name);
    for (path, cache) in [
        ("/jobs", "private, no-cache"),
        ("/jobs/nosuch", "no-store"),
        (ok.as_str(), "public, max-age=31536000, immutable"),
    ] {
        let (_, headers, _) = get_from(Vec::new(), Some("operator"), path);
        assert_eq!(headers["cache-control"], cache, "{path}");
    }
}

#[test]
fn the_address_holds_the_list_and_what_is_wrong_is_said_beside_the_form() {
    let jobs: Vec<Record> = (1..=9).map(|id| sample::full(id, "train")).collect();
    let (_, _, page) = get_from(
        jobs.clone(),
        Some("operator"),
        "/jobs?limit=4&user=alice&state=finished&columns=job,energy_joules",
    );
    assert!(
        page.contains("value=\"alice\"") && page.contains("option value=\"finished\" selected"),
        "the form shows the query"
    );
    assert!(page.contains("c-energy_joules") && !page.contains("c-wall_seconds"), "only the chosen columns");
    assert!(page.contains("rel=\"next\""), "there is more");
    assert!(page.contains(
        "api/v1/jobs?limit=4&amp;user=alice&amp;state=finished&amp;columns=job%2Cenergy_joules&amp;format=csv"
    ));
    let (status, _, page) = get_from(jobs, Some("operator"), "/jobs?since=never&user=alice");
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        page.contains("since: ") && page.contains("value=\"alice\"") && page.contains("value=\"never\""),
        "{page}"
    );
}

#[test]
fn a_list_says_why_a_job_failed_and_offers_jobs_to_compare() {
    let mut jobs: Vec<Record> = (1..=3).map(|id| sample::full(id, "train")).collect();
    for (record, (code, signal)) in jobs.iter_mut().zip([(Some(7), None), (None, Some(9))]) {
        (record.state, record.exit_code, record.signal) = (State::Failed, code, signal);
    }
    jobs[2].totals.remove(column::ENERGY);
    let (_, _, page) = get_from(jobs, Some("operator"), "/jobs");
    assert!(page.contains("<span class=\"dim\"> (7)</span>") && page.contains(" (KILL)</span>"), "{page}");
    assert!(page.contains("<span class=\"unknown\">–</span>"), "what is not known is a dash");
    assert!(
        page.contains("<form class=\"filter compare\" method=\"get\" action=\"/compare\" id=\"compare\">")
    );
    for id in 1..=3 {
        let ticked = format!("<input type=\"checkbox\" name=\"jobs\" value=\"{id}\" form=\"compare\"");
        assert!(page.contains(&ticked), "{ticked}");
    }
}

#[test]
fn all_figures_of_a_process_that_ended_between_samples_are_lower_bounds() {
    let mut record = sample::full(1, "train");
    record.processes = vec![JobProcess {
        pid: 7,
        command: "cc1".to_owned(),
        cpu_ns: Some(1_000_000_000),
        memory_peak_bytes: Some(127 << 20),
        read_bytes: Some(0),
        written_bytes: Some(0),
        ..JobProcess::default()
    }];
    let (_, _, page) = get_from(vec![record], Some("operator"), "/jobs/1");
    let table = &page[page.find("id=\"processes\"").unwrap()..];
    let table = &table[..table.find("</section>").unwrap()];
    assert_eq!(table.matches('≥').count(), 4, "{table}");
}

/// The names of classes in the selectors of a style sheet.
fn classes(css: &str) -> Vec<&str> {
    let without_comments = css.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, rest)| rest));
    let selectors =
        without_comments.flat_map(|part| part.split('}')).filter_map(|rule| rule.split('{').next());
    let names = selectors.flat_map(|selector| selector.split('.').skip(1));
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut names: Vec<&str> =
        names.map(|rest| &rest[..rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len())]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn every_class_of_the_style_sheet_is_used() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = std::fs::read_to_string(folder.join("assets/met.js")).unwrap();
    let mut folders = vec![folder.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => sources.push_str(&std::fs::read_to_string(path).unwrap()),
            }
        }
    }
    let css = std::fs::read_to_string(folder.join("assets/met.css")).unwrap();
    let found = classes(&css);
    assert!(found.contains(&"card") && found.contains(&"meters"), "{found:?}");
    // Of columns, lines and facts, whose names are put together.
    let is_made = |name: &str| name.contains('-') || name.ends_with(|letter: char| letter.is_ascii_digit());
    let is_used = |name: &str| {
        let ends = |rest: &str| {
            !rest.starts_with(|letter: char| letter.is_ascii_alphanumeric() || "_-(".contains(letter))
        };
        ['.', '"', ' ', '\''].iter().any(|before| {
            let word = format!("{before}{name}");
            sources.match_indices(&word).any(|(at, _)| ends(&sources[at + word.len()..]))
        })
    };
    let unused: Vec<&str> = found.into_iter().filter(|name| !is_made(name) && !is_used(name)).collect();
    assert!(unused.is_empty(), "no page has an element of these classes: {unused:?}");
}
