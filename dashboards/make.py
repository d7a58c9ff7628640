#!/usr/bin/env python3
"""Writes the dashboards beside it: dashboards/make.py. With --check it only says which are not current."""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
#: Of Grafana 10.4; newer ones migrate it when they load it.
SCHEMA = 39
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
API = {"type": "marcusolsson-json-datasource", "uid": "${api}"}
ELASTICSEARCH = {"type": "elasticsearch", "uid": "${elasticsearch}"}
WIDTH = 24


def data_source(name, kind, label):
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1, "hide": 0, "options": []}


def choice(name, label, query, several=True):
    """A variable whose values a Prometheus knows."""
    made = {"name": name, "label": label, "type": "query", "datasource": PROMETHEUS, "refresh": 2, "sort": 3, "hide": 0,
            "query": {"query": query, "refId": name}, "multi": several, "includeAll": several,
            "options": []}
    return {**made, "allValue": ".*"} if several else made


def textbox(name, label, text=""):
    current = {"text": text, "value": text}
    return {"name": name, "label": label, "type": "textbox", "query": text, "hide": 0, "current": current, "options": [current]}


def states():
    names = ["", "running", "pending", "finished", "failed", "cancelled", "timeout", "out_of_memory", "lost"]
    options = [{"text": name or "any", "value": name, "selected": not name} for name in names]
    return {"name": "state", "label": "State", "type": "custom", "hide": 0, "multi": False, "includeAll": False,
            "query": ",".join(f"{one['text']} : {one['value']}" for one in options), "current": options[0], "options": options}


def target(number, query):
    expression, legend = query[:2]
    instant = len(query) > 2
    return {"refId": chr(ord("A") + number), "datasource": PROMETHEUS, "editorMode": "code", "expr": expression,
            "legendFormat": legend, "range": not instant, "instant": instant, **({"format": "table"} if instant else {})}


def panel(kind, title, unit, queries, width=8, height=8, description="", **field):
    """A panel over Prometheus. `queries` are (expression, legend), with "now" for the value of this moment alone."""
    now = kind == "stat"
    targets = [target(number, query) for number, query in enumerate(queries)]
    made = {"type": kind, "title": title, "description": description, "datasource": PROMETHEUS, "targets": targets,
            "gridPos": {"w": width, "h": height}, "fieldConfig": {"defaults": {"unit": unit, **field}, "overrides": []}, "options": {}}
    if now:
        for one in targets:
            one.update(range=False, instant=True)
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "none", "graphMode": "none",
                           # A state is in the name of its series.
                           "textMode": "name" if queries[0][1] else "value"}
    if kind == "timeseries":
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                           "tooltip": {"mode": "multi", "sort": "desc"}}
        made["fieldConfig"]["defaults"].setdefault("custom", {"fillOpacity": 10, "lineWidth": 1, "showPoints": "auto", "spanNulls": False})
    return made


def stacked(*arguments, **options):
    made = panel("timeseries", *arguments, **options)
    made["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 60, "lineWidth": 0, "showPoints": "auto", "spanNulls": False,
                                                 "stacking": {"mode": "normal", "group": "A"}}
    return made


def line(*arguments, **options):
    return panel("timeseries", *arguments, **options)


def stat(title, unit, expression, description="", legend=""):
    return panel("stat", title, unit, [(expression, legend)], width=4, height=4, description=description)


def override(name, **properties):
    names = {"unit": "unit", "hidden": "custom.hidden", "links": "links", "title": "displayName", "bar": "custom.cellOptions", "most": "max"}
    return {"matcher": {"id": "byName", "options": name},
            "properties": [{"id": names[key], "value": value} for key, value in properties.items()]}


def link(title, url):
    return [{"title": title, "url": url, "targetBlank": False}]


JOB_BY_LABELS = "/d/met-job/met-job?var-datasource=${datasource}&var-manager=${__data.fields.manager}&var-id=${__data.fields.id}&${__url_time_range}"


def job_table(title, expression, unit, value, description=""):
    """The jobs with the highest value now, each a link to its own board."""
    made = panel("table", title, "short", [(expression, "{{manager}}:{{id}}", "now")], width=12, height=9, description=description)
    made["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True, "instance": True, "job": True, "__name__": True}}}]
    made["fieldConfig"]["overrides"] = [override("Value", title=value, unit=unit), override("id", links=link("Job", JOB_BY_LABELS))]
    return made


#: A table of the API: the key of a row, its title, its type, and how it is shown.
COLUMNS = [
    ("reference", "Job", "string", {}),
    ("name", "Name", "string", {}),
    ("user", "User", "string", {}),
    ("account", "Account", "string", {}),
    ("state", "State", "string", {}),
    ("partition", "Partition", "string", {}),
    ("nodes", "Nodes", "string", {}),
    ("start", "Start", "time", {}),
    ("wall_seconds", "Time", "number", {"unit": "dtdurations"}),
    ("cpu_seconds", "CPU time", "number", {"unit": "dtdurations"}),
    ("cpu_ratio", "CPU used", "number", {"unit": "percentunit", "bar": {"type": "gauge", "mode": "basic"}, "most": 1}),
    ("memory_needed_peak_bytes", "Memory", "number", {"unit": "bytes"}),
    ("memory_ratio", "Memory used", "number", {"unit": "percentunit", "bar": {"type": "gauge", "mode": "basic"}, "most": 1}),
    ("gpus", "GPUs", "number", {}),
    ("gpu_ratio", "GPU used", "number", {"unit": "percentunit", "bar": {"type": "gauge", "mode": "basic"}, "most": 1}),
    ("energy_joules", "Energy", "number", {"unit": "joule"}),
    ("emissions_grams", "CO2e", "number", {"unit": "massg"}),
    ("manager", "manager", "string", {"hidden": True}),
    ("raw_id", "raw_id", "string", {"hidden": True}),
    ("from_ms", "from_ms", "string", {"hidden": True}),
    ("to_ms", "to_ms", "string", {"hidden": True}),
]
WINDOW = "from=${__data.fields.from_ms}&to=${__data.fields.to_ms}"
JOB_LINKS = [
    *link("Charts of this job", "/d/met-user-job/met-my-job?var-api=${api}&var-job=${__data.fields.Job}&" + WINDOW),
    *link("The same from Prometheus", "/d/met-job/met-job?var-manager=${__data.fields.manager}&var-id=${__data.fields.raw_id}&" + WINDOW),
]
ASKED = [["user", "${user}"], ["account", "${account}"], ["state", "${state}"], ["since", "${__from:date:iso}"],
         ["until", "${__to:date:iso}"], ["limit", "500"]]


def api_panel(kind, title, path, fields, parameters=(), width=24, height=12, unit="short", description=""):
    """A panel over the API; each field has a JSONPath, a name and a type."""
    query = {"refId": "A", "datasource": API, "method": "GET", "urlPath": path, "queryParams": "", "params": [list(one) for one in parameters],
             "headers": [], "body": "", "bodyType": "none", "cacheDurationSeconds": 0,
             "fields": [{"jsonPath": one, "name": name, "type": of, "language": "jsonpath"} for one, name, of in fields]}
    return {"type": kind, "title": title, "description": description, "datasource": API, "targets": [query],
            "gridPos": {"w": width, "h": height}, "fieldConfig": {"defaults": {"unit": unit}, "overrides": []}, "options": {}}


def api_jobs(title, parameters, height=14, description=""):
    made = api_panel("table", title, "/api/v1/jobs", [(f"$.jobs[*].row.{key}", name, of) for key, name, of, _ in COLUMNS], parameters,
                     height=height, description=description)
    made["fieldConfig"]["overrides"] = [override(name, **shown) for _, name, _, shown in COLUMNS if shown]
    made["fieldConfig"]["overrides"].append(override("Job", links=JOB_LINKS))
    return made


def api_sum(title, key, unit, how="sum"):
    of = "string" if how == "count" else "number"
    made = api_panel("stat", title, "/api/v1/jobs", [(f"$.jobs[*].row.{key}", title, of)], ASKED, 4, 4, unit)
    made["options"] = {"reduceOptions": {"calcs": [how], "fields": f"/^{title}$/", "values": False}, "colorMode": "none", "graphMode": "none"}
    return made


def api_series(title, unit, columns, width=12):
    fields = [("$.times[*]", "Time", "time"), *((f"$.columns.{key}[*]", name, "number") for key, name in columns)]
    made = api_panel("timeseries", title, "/api/v1/jobs/${job}/series", fields, (), width, 9, unit)
    made["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "auto", "spanNulls": False}
    return made


def board(name, title, description, variables, panels, since="now-1h", refresh="30s"):
    x = y = row = 0
    for number, one in enumerate(panels, 1):
        place = one["gridPos"]
        if x + place["w"] > WIDTH:
            x, y, row = 0, y + row, 0
        place.update(x=x, y=y)
        x, row = x + place["w"], max(row, place["h"])
        one["id"] = number
    links = [{"title": "met", "type": "dashboards", "tags": ["met"], "asDropdown": True, "includeVars": False, "keepTime": True,
              "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}]
    return {"uid": f"met-{name}", "title": f"met: {title}", "description": description, "tags": ["met"], "schemaVersion": SCHEMA, "version": 1,
            "editable": True, "graphTooltip": 1, "timezone": "", "refresh": refresh, "time": {"from": since, "to": "now"}, "timepicker": {},
            "fiscalYearStartMonth": 0, "weekStart": "", "annotations": {"list": []}, "links": links,
            "templating": {"list": variables}, "panels": panels}


BUSY = ("sum by (instance) (rate(met_node_cpu_user_seconds_total{{{0}}}[$__rate_interval]) + rate(met_node_cpu_nice_seconds_total{{{0}}}[$__rate_interval])"
        " + rate(met_node_cpu_system_seconds_total{{{0}}}[$__rate_interval]) + rate(met_node_cpu_interrupt_seconds_total{{{0}}}[$__rate_interval])"
        " + rate(met_node_cpu_soft_interrupt_seconds_total{{{0}}}[$__rate_interval]))")
SOURCE = data_source("datasource", "prometheus", "Prometheus")


def cluster():
    nodes = 'instance=~"$instance"'
    return board("cluster", "cluster", "All machines: load, memory, GPUs, power, jobs, and what is wrong.", [
        SOURCE, choice("instance", "Node", "label_values(met_daemon_jobs, instance)")], [
        stat("Nodes that answer", "short", f"count(met_daemon_jobs{{{nodes}}})"),
        stat("Jobs running", "short", f"sum(met_daemon_jobs{{{nodes}}})", "A job on several nodes counts on each."),
        stat("Cores busy", "short", f"sum({BUSY.format(nodes)})"),
        stat("Memory in use", "bytes", f"sum(met_node_memory_total_bytes{{{nodes}}} - met_node_memory_available_bytes{{{nodes}}})"),
        stat("Power", "watt", f"sum(rate(met_energy_used_joules_total{{{nodes}}}[$__rate_interval]))"),
        stat("GPUs held and idle", "short", f"sum(met_job_gpus_idle{{{nodes}}}) or vector(0)"),
        line("Cores busy", "short", [(BUSY.format(nodes), "{{instance}}")], description="CPU time per second, without idle and I/O wait."),
        line("Memory in use", "percentunit", [(f"1 - met_node_memory_available_bytes{{{nodes}}} / met_node_memory_total_bytes{{{nodes}}}", "{{instance}}")], max=1, min=0),
        stacked("Power", "watt", [(f"sum by (instance) (rate(met_energy_used_joules_total{{{nodes}}}[$__rate_interval]))", "{{instance}}")]),
        stacked("Jobs", "short", [(f"met_daemon_jobs{{{nodes}}}", "{{instance}}")]),
        line("GPU use", "percentunit", [(f"avg by (instance) (met_gpu_utilization_ratio{{{nodes}}})", "{{instance}}")], max=1, min=0),
        line("Load per node", "short", [(f"met_node_load_1{{{nodes}}}", "{{instance}}")]),
        job_table("Jobs by cores", f"topk(20, sum by (cluster, manager, id) (rate(met_job_cpu_seconds_total{{{nodes}}}[$__rate_interval])))", "short", "Cores"),
        job_table("Jobs by memory", f"topk(20, sum by (cluster, manager, id) (met_job_memory_needed_bytes{{{nodes}}}))", "bytes", "Memory"),
        line("Nodes: time since they last sent", "s", [("time() - met_member_heard_time_seconds", "{{node}}")], width=12,
             description="From the cluster server: a node that is late is down, or cut off."),
        line("Sources that fail", "short", [(f"sum by (instance) (met_source_success{{{nodes}}} == bool 0)", "{{instance}}")], width=12,
             description="`met doctor` on the node says why."),
    ])


def node():
    one = 'instance="$instance"'
    modes = ["user", "nice", "system", "io_wait", "interrupt", "soft_interrupt", "steal"]
    return board("node", "node", "One machine: CPU, memory, disks, network, GPUs, sensors, power, and the jobs on it.", [
        SOURCE, choice("instance", "Node", "label_values(met_daemon_jobs, instance)", several=False)], [
        stat("Up for", "dtdurations", f"met_node_uptime_seconds{{{one}}}"),
        stat("Jobs", "short", f"met_daemon_jobs{{{one}}}"),
        stat("Load, 5 min", "short", f"met_node_load_5{{{one}}}"),
        stat("Memory available", "bytes", f"met_node_memory_available_bytes{{{one}}}"),
        stat("Power", "watt", f"sum(rate(met_energy_used_joules_total{{{one}}}[$__rate_interval]))"),
        stat("Cost of measuring", "percentunit", f"rate(met_daemon_cpu_seconds_total{{{one}}}[$__rate_interval])", "CPU time of the daemon itself, in cores."),
        stacked("CPU", "short", [(f"sum by (instance) (rate(met_node_cpu_{mode}_seconds_total{{{one}}}[$__rate_interval]))", mode) for mode in modes], width=12),
        stacked("Memory", "bytes", [
            (f"met_node_memory_total_bytes{{{one}}} - met_node_memory_free_bytes{{{one}}} - met_node_memory_cached_bytes{{{one}}}", "used"),
            (f"met_node_memory_cached_bytes{{{one}}}", "cache"), (f"met_node_memory_free_bytes{{{one}}}", "free")], width=12),
        line("Pressure", "percentunit", [(f"rate(met_node_pressure_{of}_seconds_total{{{one}}}[$__rate_interval])", of) for of in ("cpu", "memory", "io")],
             description="Share of time in which some thread waited."),
        line("Disks", "Bps", [(f"rate(met_block_read_bytes_total{{{one}}}[$__rate_interval])", "{{device}} read"),
                              (f"-rate(met_block_written_bytes_total{{{one}}}[$__rate_interval])", "{{device}} written")]),
        line("Network", "Bps", [(f"rate(met_network_received_bytes_total{{{one}}}[$__rate_interval])", "{{device}} received"),
                                (f"-rate(met_network_sent_bytes_total{{{one}}}[$__rate_interval])", "{{device}} sent")]),
        stacked("Power by use", "watt", [(f"sum by (share) (rate(met_energy_used_joules_total{{{one}}}[$__rate_interval]))", "{{share}}")],
                description="Jobs, the system, the idle machine, and what could not be assigned."),
        line("GPU use", "percentunit", [(f"met_gpu_utilization_ratio{{{one}}}", "GPU {{index}}")], min=0, max=1),
        line("GPU memory", "bytes", [(f"met_gpu_memory_used_bytes{{{one}}}", "GPU {{index}}")]),
        line("GPU power", "watt", [(f"met_gpu_power_watts{{{one}}}", "GPU {{index}}")]),
        line("Temperature", "celsius", [(f"met_gpu_temperature_celsius{{{one}}}", "GPU {{index}}"), (f"met_thermal_temperature_celsius{{{one}}}", "{{type}}")]),
        line("Time to read each source", "s", [(f"rate(met_source_read_seconds_total{{{one}}}[$__rate_interval]) / (rate(met_source_readings_total{{{one}}}[$__rate_interval]) > 0)", "{{source}}")]),
        job_table("Jobs by cores", f"topk(30, sum by (cluster, manager, id) (rate(met_job_cpu_seconds_total{{{one}}}[$__rate_interval])))", "short", "Cores"),
        job_table("Jobs by memory", f"topk(30, sum by (cluster, manager, id) (met_job_memory_needed_bytes{{{one}}}))", "bytes", "Memory"),
    ])


def of_job(metric, by="instance", how="sum", rate=True):
    series = f'{metric}{{manager="$manager",id="$id"}}'
    return f"{how} by ({by}) ({f'rate({series}[$__rate_interval])' if rate else series})"


JOB_VARIABLES = [SOURCE, choice("manager", "Manager", "label_values(met_job_info, manager)", several=False),
                 choice("id", "Job", 'label_values(met_job_info{manager="$manager"}, id)', several=False)]


def job():
    return board("job", "job", "One job on all its nodes, from Prometheus.", JOB_VARIABLES, [
        stat("State", "short", 'met_job_info{manager="$manager",id="$id"}', legend="{{state}}"),
        stat("CPU time", "dtdurations", of_job("met_job_cpu_seconds_total", "id", rate=False)),
        stat("Memory, peak", "bytes", of_job("met_job_memory_needed_peak_bytes", "id", rate=False)),
        stat("Energy", "joule", of_job("met_job_energy_joules_total", "id", rate=False)),
        stat("GPUs", "short", of_job("met_job_gpus", "id", rate=False) + " or vector(0)"),
        stat("Out-of-memory kills", "short", of_job("met_job_oom_kills_total", "id", rate=False) + " or vector(0)"),
        line("Cores used", "short", [(of_job("met_job_cpu_seconds_total"), "{{instance}}"),
                                     (of_job("met_job_allocated_cpus", "id", "max", False), "allocated, all nodes")], width=12),
        line("Memory needed", "bytes", [(of_job("met_job_memory_needed_bytes", rate=False), "{{instance}}"),
                                        (of_job("met_job_allocated_memory_bytes", "id", "max", False), "allocated, all nodes")], width=12),
        line("Storage", "Bps", [(of_job("met_job_read_bytes_total"), "{{instance}} read"), ("-" + of_job("met_job_written_bytes_total"), "{{instance}} written")]),
        line("Power", "watt", [(of_job("met_job_energy_joules_total"), "{{instance}}")], description="The job's part of the power of its nodes, idle part included."),
        line("GPU use", "short", [(of_job("met_job_gpu_utilization_ratio", rate=False), "{{instance}}"), (of_job("met_job_gpus", rate=False), "{{instance}} held")],
             description="1 is one GPU fully used."),
        line("Each GPU of the job", "percentunit",
             [('met_gpu_utilization_ratio * on (instance, uuid) group_right () met_job_gpu_info{manager="$manager",id="$id"}', "{{instance}} GPU {{index}}")], min=0, max=1,
             description="Of the whole GPU: another job on it counts, too."),
        line("GPU memory", "bytes", [(of_job("met_job_gpu_memory_bytes", rate=False), "{{instance}}")]),
        line("Events", "short", [('sum by (event) (rate(met_event_count_total{manager="$manager",id="$id"}[$__rate_interval]))', "{{event}}")],
             description="Where `perf.events` names some."),
    ])


def dcgm(metric):
    return f'{metric} * on (UUID, GPU_I_ID) group_right () met_job_gpu_info{{manager="$manager",id="$id"}}'


def job_gpus():
    legend = "{{instance}} GPU {{index}}"
    shown = [("GPU use", "percent", "DCGM_FI_DEV_GPU_UTIL"), ("SM activity", "percentunit", "DCGM_FI_PROF_SM_ACTIVE"),
             ("Tensor cores", "percentunit", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), ("Memory bandwidth", "percentunit", "DCGM_FI_PROF_DRAM_ACTIVE"),
             ("Memory in use", "mbytes", "DCGM_FI_DEV_FB_USED"), ("Power", "watt", "DCGM_FI_DEV_POWER_USAGE"),
             ("Temperature", "celsius", "DCGM_FI_DEV_GPU_TEMP"), ("Clock", "hertz", "DCGM_FI_DEV_SM_CLOCK"), ("Last Xid error", "short", "DCGM_FI_DEV_XID_ERRORS")]
    panels = [line(title, unit, [(dcgm(metric) + (" * 1e6" if unit == "hertz" else ""), legend)]) for title, unit, metric in shown]
    return board("job-gpus", "GPUs of a job (DCGM exporter)", "What DCGM exporter measured on the GPUs of one job, joined by met_job_gpu_info.", JOB_VARIABLES, panels)


def energy():
    nodes = 'instance=~"$instance"'
    used, emitted = f"met_energy_used_joules_total{{{nodes}}}", f"met_energy_emissions_grams_total{{{nodes}}}"
    owner = 'on (cluster, manager, id, instance) group_left (%s) max by (cluster, manager, id, instance, %s) (met_job_info{%s!=""})'

    def by(label):
        return f"sum by ({label}) (rate(met_job_energy_joules_total{{{nodes}}}[$__rate_interval]) * {owner % (label, label, label)})"

    return board("energy", "energy and emissions", "Power, energy and CO2 equivalent by use, node, user and job.", [
        SOURCE, choice("instance", "Node", "label_values(met_daemon_jobs, instance)")], [
        stat("Power now", "watt", f"sum(rate({used}[$__rate_interval]))"),
        stat("Energy in this time", "joule", f"sum(increase({used}[$__range]))"),
        stat("of which idle", "percentunit", f'sum(increase({used[:-1]},share="idle"}}[$__range])) / sum(increase({used}[$__range]))'),
        stat("CO2e in this time", "massg", f"sum(increase({emitted}[$__range]))"),
        stat("Emission factor, g/kWh", "short", f"avg(met_emission_factor_grams_per_kilowatt_hour{{{nodes}}})"),
        stat("Held by jobs", "watt", f"sum(rate(met_job_energy_joules_total{{{nodes}}}[$__rate_interval]))"),
        stacked("Power by use", "watt", [(f"sum by (share) (rate({used}[$__rate_interval]))", "{{share}}")], width=12),
        stacked("Power by node", "watt", [(f"sum by (instance) (rate({used}[$__rate_interval]))", "{{instance}}")], width=12),
        stacked("Power by user", "watt", [(by("user"), "{{user}}")], width=12, description="Prometheus has to log in: without, pages do not say who owns a job."),
        stacked("CO2e per hour", "massg", [(f"sum by (instance) (rate({emitted}[$__rate_interval])) * 3600", "{{instance}}")], width=12),
        job_table("Jobs by power", f"topk(20, sum by (cluster, manager, id) (rate(met_job_energy_joules_total{{{nodes}}}[$__rate_interval])))", "watt", "Power"),
        job_table("Jobs by energy", f"topk(20, sum by (cluster, manager, id) (met_job_energy_joules_total{{{nodes}}}))", "joule", "Energy",
                  "Since the job began; jobs that ended a while ago are not here, but in `met list energy`."),
    ], since="now-24h", refresh="1m")


def user():
    source = data_source("api", API["type"], "API")
    return board("user", "jobs of users and accounts", "Jobs from the API of `met server`, which knows who asks: each reader sees their own jobs, "
                 "those of their accounts, or all. Jobs that started in the chosen time; empty fields mean all.", [
        source, textbox("user", "User"), textbox("account", "Account"), states()], [
        api_sum("Number of jobs", "id", "short", "count"), api_sum("CPU time", "cpu_seconds", "dtdurations"), api_sum("Time", "wall_seconds", "dtdurations"),
        api_sum("Energy", "energy_joules", "joule"), api_sum("CO2e", "emissions_grams", "massg"), api_sum("CPU used", "cpu_ratio", "percentunit", "mean"),
        api_jobs("Jobs", ASKED, description="The newest 500. A job links to its charts, in its own time window."),
        api_jobs("Running now", [["user", "${user}"], ["account", "${account}"], ["state", "running"], ["limit", "500"]], 8),
    ], since="now-7d", refresh="1m")


def user_job():
    source = data_source("api", API["type"], "API")
    head = api_panel("table", "Job", "/api/v1/jobs/${job}", [
        ("$.job.id", "Job", "string"), ("$.job.name", "Name", "string"), ("$.job.user", "User", "string"), ("$.job.state", "State", "string"),
        ("$.job.start", "Start", "time"), ("$.totals.wall_seconds", "Time", "number")], height=4)
    head["fieldConfig"]["overrides"] = [override("Time", unit="dtdurations")]
    return board("user-job", "my job", "One job from the API: what met stored of it.", [source, textbox("job", "Job")], [
        head,
        api_series("Memory needed", "bytes", [("memory_needed_bytes", "needed")]),
        api_series("CPU time", "dtdurations", [("cpu_seconds", "CPU time so far")]),
        api_series("Processes and threads", "short", [("processes_running", "processes"), ("threads_running", "threads")]),
        api_series("Energy", "joule", [("energy_joules", "energy so far")]),
    ], refresh="")


def documents(title, unit, kind, query, fields, rate=False, description=""):
    """A panel over documents of one kind: a series for each host and field, or its change per second."""
    targets = []
    for number, (how, field) in enumerate(fields):
        metrics = [{"id": "1", "type": how, "field": field, "hide": rate}]
        if rate:
            metrics.append({"id": "4", "type": "derivative", "field": "1", "settings": {"unit": "1s"}, "hide": False})
        by_host = {"id": "2", "type": "terms", "field": "hostname.keyword", "settings": {"size": "50", "order": "desc", "orderBy": "_key", "min_doc_count": "1"}}
        over_time = {"id": "3", "type": "date_histogram", "field": "timestamp", "settings": {"interval": "auto", "min_doc_count": "0", "trimEdges": "0"}}
        targets.append({"refId": chr(ord("A") + number), "datasource": ELASTICSEARCH, "query": f"_index:${{prefix}}{kind}_default* AND {query}",
                        "alias": f"{{{{hostname.keyword}}}} {field}", "timeField": "timestamp", "metrics": metrics, "bucketAggs": [by_host, over_time]})
    made = panel("timeseries", title, unit, [], width=12, description=description)
    made.update(datasource=ELASTICSEARCH, targets=targets)
    made["fieldConfig"]["defaults"]["custom"]["spanNulls"] = True
    return made


def colmet():
    job, on_node = "job_id:${job}", "involved_jobs:${job}"
    return board("colmet", "jobs by Colmet's documents", "Documents of the sink `elasticsearch`, or of a colmet-collector: the data source has the index "
                 "pattern `colmet_*` and the time field `timestamp`.", [
        data_source("elasticsearch", "elasticsearch", "Elasticsearch"), textbox("job", "Job", "*"), textbox("prefix", "Index prefix", "colmet_")], [
        documents("CPU time per second", "ns", "taskstats", job, [("max", "cpu_run_real_total")], rate=True, description="1 s is one core fully used."),
        documents("Memory", "bytes", "taskstats", job, [("max", "coremem")]),
        documents("Read and written per second", "Bps", "taskstats", job, [("max", "read_bytes"), ("max", "write_bytes")], rate=True),
        documents("Hardware events", "short", "perfhwstats", job, [("max", f"counter_{number}") for number in range(1, 6)],
                  description="Of each period; `sinks.elasticsearch.events` says which is which."),
        documents("Power of the nodes", "watt", "ipmipowerstats", on_node, [("avg", "average_power_consumption")], description="Of whole nodes that run the job."),
        documents("InfiniBand per second", "Bps", "infinibandstats", on_node, [("max", "portRcvData"), ("max", "portXmitData")], rate=True,
                  description="Of whole nodes that run the job."),
        documents("Energy of the packages", "short", "raplstats", on_node, [("max", "counter_1")], description="Microjoules of each period, first package."),
        documents("Load of the nodes", "short", "procstats", on_node, [("avg", "loadavg_1min")]),
    ])


BOARDS = {"cluster": cluster, "node": node, "job": job, "job-gpus": job_gpus, "energy": energy, "user": user, "user-job": user_job,
          "colmet": colmet}


def main():
    stale = []
    for name, make in BOARDS.items():
        path, text = os.path.join(HERE, f"{name}.json"), json.dumps(make(), indent=2) + "\n"
        if "--check" in sys.argv[1:]:
            with open(path) as file:
                stale += [path] if file.read() != text else []
        else:
            with open(path, "w") as file:
                file.write(text)
    if stale:
        sys.exit(f"not current, run dashboards/make.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
