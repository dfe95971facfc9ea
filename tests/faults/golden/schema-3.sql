-- {"at": 1795285163.5871656, "tasks": {"done": "XCOyTrXHoH2CXid7VQisDEcJOm4o5Vfj", "asks": "iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H", "again": "7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE", "runs": "84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q"}}
BEGIN TRANSACTION;
CREATE TABLE asks (id TEXT PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL,
    shown TEXT NOT NULL, state TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL);
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, at FLOAT NOT NULL, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    principal TEXT NOT NULL, fields TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE audit_chain (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, base TEXT NOT NULL, last INTEGER NOT NULL,
    head TEXT NOT NULL, seal TEXT NOT NULL);
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
INSERT INTO "schema_version" VALUES(1,1.79528515352801442146e+09);
INSERT INTO "schema_version" VALUES(2,1.79528515352913379662e+09);
INSERT INTO "schema_version" VALUES(3,1.79528515352954387658e+09);
CREATE TABLE sessions (id TEXT PRIMARY KEY, principal TEXT NOT NULL, agent TEXT NOT NULL, state TEXT NOT NULL, turns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, created_at FLOAT NOT NULL, used_at FLOAT NOT NULL, expires_at FLOAT NOT NULL,
    holder TEXT NOT NULL, held_until FLOAT NOT NULL);
CREATE TABLE task_steps (task TEXT NOT NULL, key TEXT NOT NULL, is_done INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (task, key));
INSERT INTO "task_steps" VALUES('iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H','/workflow__flow:d77eabdbf48d#1',0,'null');
INSERT INTO "task_steps" VALUES('iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H','/workflow__flow:d77eabdbf48d#1/one@0.0/python#1',1,'{"value": "asks1", "result": {"content": [{"type": "text", "text": "asks1"}]}}');
INSERT INTO "task_steps" VALUES('iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H','kept:/workflow__flow:d77eabdbf48d#1/checkpoint',1,'{"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "80819239-261a-4d1a-8bb2-2b7672eeee32", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:14.087508+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "asks1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "asks"}, "output:one": "asks1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}');
INSERT INTO "task_steps" VALUES('iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H','/workflow__flow:d77eabdbf48d#1/two@0.0/python#1',0,'null');
INSERT INTO "task_steps" VALUES('7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE','/workflow__flow:9734ddf3de29#1',0,'null');
INSERT INTO "task_steps" VALUES('7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE','/workflow__flow:9734ddf3de29#1/one@0.0/python#1',1,'{"value": "again1", "result": {"content": [{"type": "text", "text": "again1"}]}}');
INSERT INTO "task_steps" VALUES('7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE','kept:/workflow__flow:9734ddf3de29#1/checkpoint',1,'{"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "249bea76-a068-404b-b4c1-8f152459a535", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:14.223845+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "again1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "again"}, "output:one": "again1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}');
INSERT INTO "task_steps" VALUES('7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE','/workflow__flow:9734ddf3de29#1/two@0.0/python#1',0,'null');
INSERT INTO "task_steps" VALUES('84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q','/workflow__flow:5dd2cd7a8307#1',0,'null');
INSERT INTO "task_steps" VALUES('84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q','/workflow__flow:5dd2cd7a8307#1/one@0.0/python#1',1,'{"value": "runs1", "result": {"content": [{"type": "text", "text": "runs1"}]}}');
INSERT INTO "task_steps" VALUES('84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q','kept:/workflow__flow:5dd2cd7a8307#1/checkpoint',1,'{"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "ea747f27-2b54-49e8-9cba-8c3dfc2774b4", "previous_checkpoint_id": null, "timestamp": "2026-11-21T18:19:23.391953+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "runs1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null}}]}, "state": {"input": {"x": "runs"}, "output:one": "runs1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}');
INSERT INTO "task_steps" VALUES('84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q','/workflow__flow:5dd2cd7a8307#1/two@0.0/python#1',0,'null');
CREATE TABLE tasks (id TEXT PRIMARY KEY, principal TEXT NOT NULL, tool TEXT NOT NULL, call TEXT NOT NULL, status TEXT NOT NULL,
    message TEXT NOT NULL, outcome TEXT NOT NULL, asked TEXT NOT NULL, ttl_seconds FLOAT NOT NULL, created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL, gone_at FLOAT NOT NULL, is_cancelled INTEGER NOT NULL, attempts INTEGER NOT NULL,
    owner TEXT NOT NULL, lease_until FLOAT NOT NULL);
INSERT INTO "tasks" VALUES('XCOyTrXHoH2CXid7VQisDEcJOm4o5Vfj','local','workflow__flow','{"arguments": {"x": "done"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','completed','one started','{"result": {"content": [{"type": "text", "text": "done12"}]}}','{}',3600.0,1.79528515159161496158e+09,1.79528515389172148709e+09,1.79528875389172148709e+09,0,1,'f0bcc8b11c2ee60bf4e49566',1.79528515623329043386e+09);
INSERT INTO "tasks" VALUES('iSSAEjULjw_tHWqblHOZHeBkcCbTCE4H','local','workflow__flow','{"arguments": {"x": "asks"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','input_required','two started','{}','{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}}}',3600.0,1.79528515395517659185e+09,1.79528516298505496978e+09,0.0,0,2,'6af34bf2b5c91dfa4fde22e9',1.79528516586821913717e+09);
INSERT INTO "tasks" VALUES('7hSUPvTYETtBGN26qCXn_X8T2L9SIVRE','local','workflow__flow','{"arguments": {"x": "again"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','working','two started','{}','{"ask-1": {"request": {"method": "elicitation/create", "params": {"mode": "form", "message": "The gateway stopped while ''python'' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?", "requestedSchema": {"type": "object", "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}}, "required": ["outcome"]}}}, "answer": {"action": "accept", "content": {"outcome": "retry"}}}}',3600.0,1.79528515415953326224e+09,1.79528516315827941897e+09,0.0,0,2,'6af34bf2b5c91dfa4fde22e9',1.79528516586821913717e+09);
INSERT INTO "tasks" VALUES('84lVOUnW5qKdt63Qt6u1-YB1A8FPHL2Q','local','workflow__flow','{"arguments": {"x": "runs"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}}','working','one started','{}','{}',3600.0,1.79528516325258374213e+09,1.79528516331639075281e+09,0.0,0,1,'6af34bf2b5c91dfa4fde22e9',1.79528516586821913717e+09);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX sampling_use_key ON sampling_use (server, principal, at);
CREATE INDEX asks_principal ON asks (principal, state);
CREATE INDEX sessions_principal ON sessions (principal, used_at);
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX history_session ON history (owner, session, id);
CREATE INDEX memories_owner ON memories (owner, collection, id);
CREATE INDEX tasks_principal ON tasks (principal, created_at);
CREATE INDEX tasks_lease ON tasks (gone_at, lease_until);
DELETE FROM "sqlite_sequence";
COMMIT;
