-- {"at": 1795285181.1109977, "tasks": {"done": "cclHvKpggcTzcDf2fzOcQ9mQYe31ftlv", "asks": "L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3", "again": "LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-", "runs": "hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82"}}
BEGIN TRANSACTION;
CREATE TABLE approval_rules (id TEXT PRIMARY KEY, principal TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    arguments TEXT NOT NULL, shown TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL);
CREATE TABLE asks (id TEXT PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL,
    shown TEXT NOT NULL, state TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, form TEXT NOT NULL DEFAULT '', answer TEXT NOT NULL DEFAULT '');
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, at FLOAT NOT NULL, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    principal TEXT NOT NULL, fields TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE audit_chain (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, base TEXT NOT NULL, last INTEGER NOT NULL,
    head TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE checkpoints (seq INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL, workflow TEXT NOT NULL, graph TEXT NOT NULL,
    iteration INTEGER NOT NULL, at FLOAT NOT NULL, form TEXT NOT NULL);
CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, session TEXT NOT NULL, messages TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE locks (name TEXT PRIMARY KEY);
INSERT INTO "locks" VALUES('audit');
INSERT INTO "locks" VALUES('sampling');
INSERT INTO "locks" VALUES('asks');
INSERT INTO "locks" VALUES('tasks');
CREATE TABLE memories (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, collection TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL,
    fields TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE sampling_use (id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT NOT NULL, principal TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, at FLOAT NOT NULL);
INSERT INTO "schema_version" VALUES(1,1.79528517266380739213e+09);
INSERT INTO "schema_version" VALUES(2,1.79528517266461634638e+09);
INSERT INTO "schema_version" VALUES(3,1.79528517266533040996e+09);
INSERT INTO "schema_version" VALUES(4,1.79528517266555166244e+09);
INSERT INTO "schema_version" VALUES(5,1.79528517266604757305e+09);
INSERT INTO "schema_version" VALUES(6,1.79528517266648769377e+09);
INSERT INTO "schema_version" VALUES(7,1.79528517266677856449e+09);
CREATE TABLE sessions (id TEXT PRIMARY KEY, principal TEXT NOT NULL, agent TEXT NOT NULL, state TEXT NOT NULL, turns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, created_at FLOAT NOT NULL, used_at FLOAT NOT NULL, expires_at FLOAT NOT NULL,
    holder TEXT NOT NULL, held_until FLOAT NOT NULL);
CREATE TABLE task_starts (scope TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE task_steps (task TEXT NOT NULL, key TEXT NOT NULL, is_done INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (task, key));
INSERT INTO "task_steps" VALUES('L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3','/workflow__flow:d77eabdbf48d#1',0,'null');
INSERT INTO "task_steps" VALUES('L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3','/workflow__flow:d77eabdbf48d#1/one@0.0/python#1',1,'{"value": "asks1", "result": {"content": [{"type": "text", "text": "asks1"}]}}');
INSERT INTO "task_steps" VALUES('L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3','kept:/workflow__flow:d77eabdbf48d#1/checkpoint',1,'{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "4f46845a-f92b-40f0-bf25-e423a0b4e3c4", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:32.854133+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "asks1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "asks"}, "output:one": "asks1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO "task_steps" VALUES('L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3','/workflow__flow:d77eabdbf48d#1/two@0.0/python#1',0,'null');
INSERT INTO "task_steps" VALUES('LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-','/workflow__flow:9734ddf3de29#1',0,'null');
INSERT INTO "task_steps" VALUES('LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-','/workflow__flow:9734ddf3de29#1/one@0.0/python#1',1,'{"value": "again1", "result": {"content": [{"type": "text", "text": "again1"}]}}');
INSERT INTO "task_steps" VALUES('LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-','kept:/workflow__flow:9734ddf3de29#1/checkpoint',1,'{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "f086c444-cfe2-4f75-8706-58e2f51cac79", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:32.927645+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "again1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "again"}, "output:one": "again1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO "task_steps" VALUES('LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-','/workflow__flow:9734ddf3de29#1/two@0.0/python#1',0,'null');
INSERT INTO "task_steps" VALUES('hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82','/workflow__flow:5dd2cd7a8307#1',0,'null');
INSERT INTO "task_steps" VALUES('hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82','/workflow__flow:5dd2cd7a8307#1/one@0.0/python#1',1,'{"value": "runs1", "result": {"content": [{"type": "text", "text": "runs1"}]}}');
INSERT INTO "task_steps" VALUES('hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82','kept:/workflow__flow:5dd2cd7a8307#1/checkpoint',1,'{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "cb6f0f5b-0eb0-4665-8b42-a1ec06108060", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:40.960080+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "runs1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "runs"}, "output:one": "runs1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO "task_steps" VALUES('hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82','/workflow__flow:5dd2cd7a8307#1/two@0.0/python#1',0,'null');
CREATE TABLE tasks (id TEXT PRIMARY KEY, principal TEXT NOT NULL, tool TEXT NOT NULL, call TEXT NOT NULL, status TEXT NOT NULL,
    message TEXT NOT NULL, outcome TEXT NOT NULL, asked TEXT NOT NULL, ttl_seconds FLOAT NOT NULL, created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL, gone_at FLOAT NOT NULL, is_cancelled INTEGER NOT NULL, attempts INTEGER NOT NULL,
    owner TEXT NOT NULL, lease_until FLOAT NOT NULL, limits TEXT NOT NULL DEFAULT '[]', admitted_at FLOAT NOT NULL DEFAULT 0);
INSERT INTO "tasks" VALUES('cclHvKpggcTzcDf2fzOcQ9mQYe31ftlv','local','workflow__flow','{"arguments": {"x": "done"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','completed','one started','{"result": {"content": [{"type": "text", "text": "done12"}]}}','{}',3600.0,1795285171.68859,1.79528517281931114198e+09,1.79528877281931114199e+09,0,1,'7a9d85e65cc8fdb08dee7506',1.79528517528078627582e+09,'[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79528517275323653223e+09);
INSERT INTO "tasks" VALUES('L0nCYMa8JVwNQcvT88VEODrkoGpuq6n3','local','workflow__flow','{"arguments": {"x": "asks"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','input_required','two started','{}','{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}, "at": 1795285180.553137}}',3600.0,1.79528517283668184278e+09,1.79528518055314636235e+09,0.0,0,2,'6ca83726ba91c71e2ee6a87a',1.7952851834070115089e+09,'[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79528517283900666237e+09);
INSERT INTO "tasks" VALUES('LGn1PDm9c_BH0aAcOe7yd3cPEl7_FY_-','local','workflow__flow','{"arguments": {"x": "again"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','working','two started','{}','{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}, "at": 1795285180.6242917, "answer": {"action": "accept", "content": {"outcome": "retry"}}}}',3600.0,1.79528517289878511431e+09,1.79528518074030470847e+09,0.0,0,2,'6ca83726ba91c71e2ee6a87a',1.7952851834070115089e+09,'[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79528517290054225917e+09);
INSERT INTO "tasks" VALUES('hEoc-VzxUt1gMr3aGqVKsFOVwKlmCz82','local','workflow__flow','{"arguments": {"x": "runs"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','working','one started','{}','{}',3600.0,1.79528518081343555455e+09,1.79528518088805770871e+09,0.0,0,1,'6ca83726ba91c71e2ee6a87a',1.7952851834070115089e+09,'[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79528518084384298321e+09);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX sampling_use_key ON sampling_use (server, principal, at);
CREATE INDEX asks_principal ON asks (principal, state);
CREATE INDEX sessions_principal ON sessions (principal, used_at);
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX history_session ON history (owner, session, id);
CREATE INDEX memories_owner ON memories (owner, collection, id);
CREATE INDEX tasks_principal ON tasks (principal, created_at);
CREATE INDEX tasks_lease ON tasks (gone_at, lease_until);
CREATE INDEX approval_rules_tool ON approval_rules (principal, source, name);
CREATE UNIQUE INDEX checkpoints_id ON checkpoints (owner, id);
CREATE INDEX checkpoints_workflow ON checkpoints (owner, workflow, at);
CREATE INDEX task_starts_at ON task_starts (at);
DELETE FROM "sqlite_sequence";
COMMIT;
