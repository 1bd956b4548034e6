"""What the doctor says, in English and Chinese: what is, and where something is wrong, what to do.

`{names}` are filled from a finding's facts. Every sentence is for somebody who builds flows in Dify and
has never seen this code. Keys of the checks' titles and of the last line are `check_…` and `sum_…`.
"""

from collections.abc import Mapping
from typing import Final, Literal

Language = Literal["en", "zh"]

_EN: Final[Mapping[str, str]] = {
    "check_reach": "Reachable",
    "check_ready": "Parts",
    "check_worker": "Worker",
    "check_key": "API key",
    "check_document": "Tool document",
    "check_network": "Dify's network",
    "check_knowledge": "External knowledge",
    "check_clock": "Clock",
    "check_storage": "Durability",
    "check_hindsight": "Hindsight",
    "check_settings": "Settings",
    "check_round_trip": "Remember and recall",
    "check_forget": "Forget",
    # How a request can end
    "refused": "nothing listens at {place}. Is the service running, and is this its address and port?",
    "dns": (
        "the name {place} is not known here. Check the spelling; a container's name is only known "
        "inside its network."
    ),
    "timeout": (
        "no answer from {place} within {seconds} s. A firewall may swallow it, or the service hangs: "
        "look at its log."
    ),
    "tls": (
        "the certificate of {place} is not trusted. Dify will not trust it either: use one of a public "
        "authority."
    ),
    "tls_mismatch": "{place} does not speak HTTPS. Use http:// or the port that does.",
    "broken": (
        "{place} closes the connection without an answer. Is it another program, or HTTPS asked for as "
        "http://?"
    ),
    "redirect": (
        "{place} sends on to {location}. Use that address directly: Dify would turn a POST into a GET "
        "on the way."
    ),
    "not_ours": (
        "{place} answers {status} with {type}, not as the memory service does. Another program, a "
        "proxy's or a login page?"
    ),
    "failed": "{place} answers {status} ({code}). Look at the service's log for {request}.",
    "not_asked": "not checked: see above.",
    # reach
    "reached": "answers in {ms} ms.",
    "slow": "answers in {ms} ms. Dify's recall waits 2 s in all: is the machine overloaded, or far away?",
    # ready, worker
    "parts_ok": "Redis and Hindsight answer.",
    "redis_down": (
        "Redis does not answer: nothing can be remembered. Start it, or correct MEMORY_REDIS_URL."
    ),
    "hindsight_down": (
        "Hindsight does not answer: turns wait, recalls are old or empty. Start it, or correct "
        "MEMORY_HINDSIGHT_URL."
    ),
    "cache_down": (
        "the cache's Redis does not answer: every recall asks Hindsight. Start it, or correct "
        "MEMORY_CACHE_REDIS_URL."
    ),
    "dead_letters": "{count} turns could not be stored and wait for you. See `dify-memory dead`.",
    "worker_ok": "alive, {waiting} users' turns wait.",
    "worker_dead": (
        "no worker is alive: turns are accepted and safe, but never stored. Start `dify-memory worker`."
    ),
    "queue_full": "so many turns wait that no more are taken (MEMORY_MAX_WAITING).",
    "not_durable": (
        "Redis may lose turns that were acknowledged. It needs `appendonly yes` on a disk it can write, "
        "`appendfsync always` or `everysec`, and `maxmemory-policy noeviction`."
    ),
    "tried_in_vain": (
        "turns have been tried for a quarter of an hour and none was stored. See the worker's log: it is "
        "Hindsight's key (MEMORY_HINDSIGHT_API_KEY) or the language model."
    ),
    "worker_stuck": (
        "turns have waited for {seconds} s too long. Look at the worker's log, or start more workers."
    ),
    # key
    "key_ok": "accepted; it may {may}.",
    "key_partial": "accepted; it may {may}, but not {may_not}.",
    "key_missing": "none was given. Pass --key or set MEMORY_API_KEY; `dify-memory up` shows it.",
    "key_odd": "it holds characters no header can carry. Was it copied whole, without spaces or quotes?",
    "key_refused": (
        "refused. Dify reports this as “blocked by SSRF protection”. Compare it with MEMORY_API_KEY of "
        "the service."
    ),
    "key_useless": (
        "accepted, but it lacks {may_not}: Dify's templates need recall and add. Use a key with these scopes."
    ),
    # document
    "document_ok": "Dify imports {tools} tools from /dify/openapi.json.",
    "document_bad": (
        "Dify would stumble over it: {faults}. Is the service, or something in front of it, another version?"
    ),
    # network
    "network_ok": "Dify's proxy lets {url} pass.",
    "network_not_a_url": "{url} is no whole URL, such as http://memory-api:8000.",
    "network_slash": "{url} ends with a slash: Dify would call //memory/… and find nothing. Leave it out.",
    "network_https_port": "{url}: Dify's proxy lets HTTPS pass on port 443 only. Serve it there.",
    "network_http_port": (
        "{url}: Dify's proxy lets plain HTTP pass on port 80 and from 1025 on. Change the port."
    ),
    "network_localhost": (
        "Dify would call {url}, which there is Dify's own proxy. Use "
        "http://host.docker.internal:{port} (listen with MEMORY_HOST=0.0.0.0) or the container's name, "
        "and set MEMORY_PUBLIC_URL to it; or tell me with --dify-url what Dify uses."
    ),
    "network_private": (
        "{url} is a private address, denied since Dify 1.15. Give it a host name and set "
        "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS=<that name> in Dify's .env, then `docker compose up -d "
        "--force-recreate ssrf_proxy`."
    ),
    "network_inner": (
        "{host} is a name of an inner network. Dify 1.15 and newer need "
        "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS={host} in Dify's .env, then `docker compose up -d "
        "--force-recreate ssrf_proxy`."
    ),
    # knowledge, clock
    "knowledge_ok": "Dify can register {url}.",
    "knowledge_missing": "this service does not have it; update it.",
    "clock_ok": "{seconds} s from this computer's.",
    "clock_off": (
        "{seconds} s from this computer's: memories get wrong dates, links end early. Synchronise it (NTP)."
    ),
    "clock_unknown": "the service does not tell the time.",
    # storage
    "storage_ok": "what is acknowledged survives a restart of Redis ({fsync}).",
    "storage_everysec": (
        "Redis writes to disk every second: a power cut can lose the last second. `appendfsync always` "
        "loses nothing."
    ),
    "storage_fsync_off": (
        "Redis leaves it to the system when turns reach the disk: a power cut loses half a minute of them. "
        "Set `appendfsync always`, or `everysec`."
    ),
    "storage_aof_off": (
        "Redis keeps accepted turns in memory only: a restart loses them. Set `appendonly yes`."
    ),
    "storage_evicts": (
        "Redis throws data away when it is full ({policy}). Set `maxmemory-policy noeviction`, or put "
        "cached answers elsewhere with MEMORY_CACHE_REDIS_URL."
    ),
    "storage_unknown": "Redis does not tell {what}. Ask its operator: AOF on, `noeviction`.",
    "not_allowed": "not checked: the key lacks the scope admin.",
    "not_there": "not checked: this version of the service cannot tell.",
    # hindsight
    "hindsight_ok": "version {version}.",
    "hindsight_untested": (
        "version {version}; this service is tested with {tested}. It may well work: look at the round "
        "trip below."
    ),
    "hindsight_llm_trace": (
        "version {version} keeps prompts with what users said. Set HINDSIGHT_API_LLM_TRACE_ENABLED=false."
    ),
    "hindsight_audit_log": (
        "version {version} keeps an audit log with contents. Switch it off unless you need it."
    ),
    # settings
    "settings_ok": "nothing risky is switched on.",
    "settings_anonymous": (
        "MEMORY_ALLOW_ANONYMOUS_USERS is on: everybody without a user id shares one memory."
    ),
    # round trip
    "round_trip_ok": (
        "accepted in {add_ms} ms, stored after {stored_s} s, recalled in {recall_ms} ms; a stranger "
        "sees nothing."
    ),
    "key_of_some": (
        "not checked: this key is only good for certain users. Run the doctor with one that is good for all."
    ),
    "not_stored": (
        "the turn was accepted but not stored within {seconds} s (it is {state}). Look at the worker's "
        "log; a slow model needs --patience."
    ),
    "job_failed": (
        "the turn was accepted, but storing it {state}: {reason}. See the worker's log and Hindsight's."
    ),
    "kept_nothing": (
        "stored, but the language model found nothing worth keeping in “I am allergic to peanuts”. "
        "Check the model."
    ),
    "not_recalled": (
        "stored, but not found again. Does MEMORY_EMBEDDING_MODEL name Hindsight's model? Is "
        "MEMORY_MIN_SCORE too high?"
    ),
    "degraded": "recall works with a part missing ({reason}): see Parts above.",
    "leaked": "A STRANGER SEES THE MEMORY. Take the service off the network and report this.",
    # forget
    "forget_ok": "the test memory is gone, and not recalled any more.",
    "forget_missing": "this version of the service cannot forget; the test user {user} is left behind.",
    "forget_not_allowed": "the key lacks the scope forget; the test user {user} is left behind.",
    "forget_unverified": (
        "the service could not confirm that the test user {user} is forgotten. Run this again in a minute."
    ),
    "not_forgotten": (
        "the test memory is still recalled after it was forgotten. Take it seriously and report it."
    ),
    # the last line
    "sum_all_ok": "Everything works.",
    "sum_warnings": "It works. Remarks: {count}.",
    "sum_failures": "Not working: {count}.",
}

_ZH: Final[Mapping[str, str]] = {
    "check_reach": "可以访问",
    "check_ready": "各部分",
    "check_worker": "后台处理",
    "check_key": "API 密钥",
    "check_document": "工具文档",
    "check_network": "Dify 的网络",
    "check_knowledge": "外部知识库",
    "check_clock": "时钟",
    "check_storage": "数据持久性",
    "check_hindsight": "Hindsight",
    "check_settings": "设置",
    "check_round_trip": "记住并回忆",
    "check_forget": "忘记",
    # How a request can end
    "refused": "{place} 没有程序在监听。服务启动了吗？地址和端口对吗？",
    "dns": "这里找不到主机名 {place}。请检查拼写；容器名只在它自己的网络里有效。",
    "timeout": "{place} 在 {seconds} 秒内没有应答。可能被防火墙拦截，或服务卡住了：请查看服务日志。",
    "tls": "{place} 的证书不受信任，Dify 也不会信任它：请换用公共机构签发的证书。",
    "tls_mismatch": "{place} 不是 HTTPS。请改用 http://，或换成 HTTPS 的端口。",
    "broken": "{place} 没有应答就断开了连接。是不是别的程序，或者应该用 https://？",
    "redirect": "{place} 重定向到 {location}。请直接使用后者：Dify 跟随重定向时会把 POST 变成 GET。",
    "not_ours": "{place} 返回 {status}（{type}），不像是记忆服务。是不是别的程序、代理页面或登录页？",
    "failed": "{place} 返回 {status}（{code}）。请在服务日志里查找 {request}。",
    "not_asked": "未检查：原因见上。",
    # reach
    "reached": "{ms} 毫秒内应答。",
    "slow": "{ms} 毫秒才应答。Dify 的查询总共只等 2 秒：机器过载了，还是距离太远？",
    # ready, worker
    "parts_ok": "Redis 和 Hindsight 都有应答。",
    "redis_down": "Redis 没有应答：无法保存任何内容。请启动它，或改正 MEMORY_REDIS_URL。",
    "hindsight_down": (
        "Hindsight 没有应答：对话会排队，查询只能得到旧的或空的结果。请启动它，或改正 MEMORY_HINDSIGHT_URL。"
    ),
    "cache_down": (
        "缓存所用的 Redis 没有应答：每次查询都要访问 Hindsight。请启动它，或改正 MEMORY_CACHE_REDIS_URL。"
    ),
    "dead_letters": "有 {count} 轮对话无法保存，等待处理。见 `dify-memory dead`。",
    "worker_ok": "正常，有 {waiting} 位用户的对话在等待。",
    "worker_dead": "没有后台进程：对话会被接收且不会丢失，但不会保存为记忆。请运行 `dify-memory worker`。",
    "queue_full": "等待保存的对话太多，不再接收新的（MEMORY_MAX_WAITING）。",
    "not_durable": (
        "Redis 可能丢失已经确认的对话。它需要可写的磁盘和 `appendonly yes`、`appendfsync always` 或 "
        "`everysec`，以及 `maxmemory-policy noeviction`。"
    ),
    "tried_in_vain": (
        "对话已反复尝试一刻钟，没有一条被保存。请查看后台进程的日志：问题在 Hindsight 的密钥"
        "（MEMORY_HINDSIGHT_API_KEY）或大模型。"
    ),
    "worker_stuck": "有对话已超时等待 {seconds} 秒。请查看后台进程的日志，或增加后台进程。",
    # key
    "key_ok": "有效；权限：{may}。",
    "key_partial": "有效；权限：{may}；没有：{may_not}。",
    "key_missing": "没有提供。请用 --key 或环境变量 MEMORY_API_KEY；`dify-memory up` 会显示它。",
    "key_odd": "包含请求头不能携带的字符。是否完整复制，没有多余的空格或引号？",
    "key_refused": "被拒绝。Dify 会显示为“blocked by SSRF protection”。请与服务的 MEMORY_API_KEY 核对。",
    "key_useless": "有效，但缺少 {may_not}：Dify 模板需要 recall 和 add。请换用有这些权限的密钥。",
    # document
    "document_ok": "Dify 可以从 /dify/openapi.json 导入 {tools} 个工具。",
    "document_bad": "Dify 无法正确导入：{faults}。服务或它前面的程序是不是别的版本？",
    # network
    "network_ok": "Dify 的代理允许访问 {url}。",
    "network_not_a_url": "{url} 不是完整的 URL，例如 http://memory-api:8000。",
    "network_slash": "{url} 末尾多了斜杠：Dify 会调用 //memory/…，什么也找不到。请去掉。",
    "network_https_port": "{url}：Dify 的代理只允许 443 端口的 HTTPS。请改用该端口。",
    "network_http_port": "{url}：Dify 的代理只允许 80 和 1025 以上端口的 HTTP。请换端口。",
    "network_localhost": (
        "Dify 会调用 {url}，在那里它是 Dify 自己的代理。请改用 "
        "http://host.docker.internal:{port}（并设置 MEMORY_HOST=0.0.0.0）或容器名，并写入 "
        "MEMORY_PUBLIC_URL；或者用 --dify-url 告诉我 Dify 用的地址。"
    ),
    "network_private": (
        "{url} 是内网地址，Dify 1.15 起默认禁止。请给它一个主机名，在 Dify 的 .env 里设置 "
        "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS=<该主机名>，再运行 `docker compose up -d --force-recreate "
        "ssrf_proxy`。"
    ),
    "network_inner": (
        "{host} 是内部网络的名字。Dify 1.15 及以上需要在 .env 里设置 "
        "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS={host}，再运行 `docker compose up -d --force-recreate "
        "ssrf_proxy`。"
    ),
    # knowledge, clock
    "knowledge_ok": "可以在 Dify 中登记 {url}。",
    "knowledge_missing": "该服务没有这个接口，请升级。",
    "clock_ok": "与本机相差 {seconds} 秒。",
    "clock_off": "与本机相差 {seconds} 秒：记忆的日期会出错，链接会提前失效。请同步时间（NTP）。",
    "clock_unknown": "服务没有返回时间。",
    # storage
    "storage_ok": "已确认的内容在 Redis 重启后仍在（{fsync}）。",
    "storage_everysec": (
        "Redis 每秒写盘一次：断电可能丢失最后一秒的内容。设为 `appendfsync always` 则不会丢失。"
    ),
    "storage_fsync_off": (
        "何时写盘由操作系统决定：断电可能丢失约半分钟的对话。请设置 `appendfsync always` 或 `everysec`。"
    ),
    "storage_aof_off": "Redis 只把待处理的对话放在内存里，重启就会丢失。请设置 `appendonly yes`。",
    "storage_evicts": (
        "Redis 内存满时会丢弃数据（{policy}）。请设置 `maxmemory-policy noeviction`，并可用 "
        "MEMORY_CACHE_REDIS_URL 把缓存放到别处。"
    ),
    "storage_unknown": "Redis 没有透露 {what}。请询问管理员：应开启 AOF，并使用 `noeviction`。",
    "not_allowed": "未检查：密钥没有 admin 权限。",
    "not_there": "未检查：该版本的服务不提供此信息。",
    # hindsight
    "hindsight_ok": "版本 {version}。",
    "hindsight_untested": "版本 {version}；本服务用 {tested} 测试过。也许可用：请看下面的“记住并回忆”。",
    "hindsight_llm_trace": (
        "版本 {version} 会保留含用户原话的提示词。请设置 HINDSIGHT_API_LLM_TRACE_ENABLED=false。"
    ),
    "hindsight_audit_log": "版本 {version} 会保留含内容的审计日志。除非需要，请关闭。",
    # settings
    "settings_ok": "没有打开有风险的选项。",
    "settings_anonymous": "MEMORY_ALLOW_ANONYMOUS_USERS 已打开：所有没有用户 ID 的人共用一份记忆。",
    # round trip
    "round_trip_ok": "{add_ms} 毫秒接收，{stored_s} 秒后保存，{recall_ms} 毫秒查到；别的用户看不到。",
    "key_of_some": "未检查：这个密钥只适用于某些用户。请用适用于所有用户的密钥再检查一次。",
    "not_stored": (
        "对话已接收，但 {seconds} 秒内没有保存（状态 {state}）。请查看后台进程的日志；模型较慢时用 "
        "--patience 延长。"
    ),
    "job_failed": "对话已接收，但保存失败（{state}）：{reason}。请查看后台进程和 Hindsight 的日志。",
    "kept_nothing": "已保存，但模型认为“我对花生过敏”不值得记住。请检查所用的模型。",
    "not_recalled": (
        "已保存，但查不到。MEMORY_EMBEDDING_MODEL 是 Hindsight 的模型吗？MEMORY_MIN_SCORE 是不是太高？"
    ),
    "degraded": "查询可用，但缺少部分来源（{reason}）：见上面的“各部分”。",
    "leaked": "别的用户看到了这条记忆！请立即停用服务并报告此问题。",
    # forget
    "forget_ok": "测试记忆已删除，查不到了。",
    "forget_missing": "该版本的服务不支持忘记；测试用户 {user} 的记忆留在了里面。",
    "forget_not_allowed": "密钥没有 forget 权限；测试用户 {user} 的记忆留在了里面。",
    "forget_unverified": "服务未能确认测试用户 {user} 已被忘记。请过一分钟再试。",
    "not_forgotten": "忘记之后仍能查到测试记忆。请重视并报告此问题。",
    # the last line
    "sum_all_ok": "一切正常。",
    "sum_warnings": "可以使用；有 {count} 点需要注意。",
    "sum_failures": "有 {count} 项不正常。",
}

TEXTS: Final[Mapping[Language, Mapping[str, str]]] = {"en": _EN, "zh": _ZH}


def sentence(code: str, language: Language, facts: Mapping[str, str]) -> str:
    """One text, filled in; KeyError for a fact it needs and was not given."""
    return TEXTS[language][code].format(**facts)
