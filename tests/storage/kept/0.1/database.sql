BEGIN TRANSACTION;
CREATE TABLE approval_rules (id TEXT PRIMARY KEY, principal TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    arguments TEXT NOT NULL, shown TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, made_by TEXT NOT NULL DEFAULT '', gateway TEXT NOT NULL DEFAULT '');
INSERT INTO "approval_rules" VALUES('432c0e0380','local','notes','write','','Approve this call of ''write'' of ''notes''?
│ path: notes/a',1.79589613675123333934e+09,2.11125613675123333925e+09,'local','bedb6dd5908d042e');
CREATE TABLE asks (id TEXT PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL,
    shown TEXT NOT NULL, state TEXT NOT NULL, created_at FLOAT NOT NULL, expires_at FLOAT NOT NULL, form TEXT NOT NULL DEFAULT '', answer TEXT NOT NULL DEFAULT '', approver TEXT NOT NULL DEFAULT 'operator', decided_by TEXT NOT NULL DEFAULT '');
INSERT INTO "asks" VALUES('b6a1a77c19','call','notes','write','local','Approve this call of ''write'' of ''notes''?
│ path: notes/a','delivered',1.7958961289828214645e+09,1.7958997289828214645e+09,'','','caller','local');
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, at FLOAT NOT NULL, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    principal TEXT NOT NULL, fields TEXT NOT NULL, digest TEXT NOT NULL);
INSERT INTO "audit" VALUES(1,1.79589611655748558043e+09,'call.audited','workflow/flow','first','local','{"outcome": "complete"}','f45552e702480c0bf8d6ba48a352244ddaf9b2b473c68829052eb957a71f0e13');
INSERT INTO "audit" VALUES(2,1.79589611669316482549e+09,'call.audited','workflow/flow','second','local','{"outcome": "complete"}','7658e7e480f7f7e58997523bbb1cc1eb10368b030e1025b4cc6cabb140c989b4');
INSERT INTO "audit" VALUES(3,1.79589612901755023006e+09,'approval.waiting','notes','write','local','{"by": "caller", "id": "b6a1a77c19"}','4b01df976f8f0955cb6201bbc161c2bf95eee400dab800e4598c2c4411d6c73e');
INSERT INTO "audit" VALUES(4,1.79589613681955456736e+09,'approval.rule','notes','write','local','{"arguments": "any", "id": "432c0e0380", "madeBy": "local"}','8134d3c6e6790972e74ad067023ae51dfc12a9187ad40ab5d50b1519fd6c9420');
INSERT INTO "audit" VALUES(5,1.79589613681962513925e+09,'approval.decided','notes','write','local','{"by": "caller", "channel": "list", "decidedBy": "local", "milliseconds": 7837, "outcome": "approved", "what": "call"}','3ae2c2e4e6e98d9463483845cc31b3155c19480d0cff664babff5d40521bdc3a');
INSERT INTO "audit" VALUES(6,1.79589614129080891611e+09,'call.refused','notes','notes__read','local','{"milliseconds": 0.69, "outcome": "refused", "rule": "arguments.read.path"}','d5bc27c84f5c11021e225993e966b2d98c226387c29d115fd9121a905b05204c');
INSERT INTO "audit" VALUES(7,1.79589614158609914783e+09,'call.audited','workflow/flow','first','local','{"outcome": "complete"}','29c0c690d68ff89eceb0fda09638b32b8d2090be7c55d83f4f454805b51514a0');
CREATE TABLE audit_chain (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, base TEXT NOT NULL, last INTEGER NOT NULL,
    head TEXT NOT NULL, seal TEXT NOT NULL);
INSERT INTO "audit_chain" VALUES(1,1,'0000000000000000000000000000000000000000000000000000000000000000',7,'29c0c690d68ff89eceb0fda09638b32b8d2090be7c55d83f4f454805b51514a0','145f76f4070fbd1322ab93a17dea67325236328d9c96a561912f95bdd44fa50f');
CREATE TABLE checkpoints (seq INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL, workflow TEXT NOT NULL, graph TEXT NOT NULL,
    iteration INTEGER NOT NULL, at FLOAT NOT NULL, form TEXT NOT NULL);
CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, session TEXT NOT NULL, messages TEXT NOT NULL, at FLOAT NOT NULL);
INSERT INTO "history" VALUES(1,'local','3d522cd67d7cd8325eb65ea662c9e472','[{"type": "message", "role": "user", "contents": [{"type": "text", "text": "I am Ada."}]}, {"type": "message", "role": "assistant", "contents": [{"type": "text", "text": "You said: I am Ada."}], "author_name": "helper", "message_id": "run-d3986cb0-50a9-4110-872f-e0fb49f44813-1-message-0"}]',1.7958961199535810947e+09);
INSERT INTO "history" VALUES(2,'local','3d522cd67d7cd8325eb65ea662c9e472','[{"type": "message", "role": "user", "contents": [{"type": "text", "text": "I like figs."}]}, {"type": "message", "role": "assistant", "contents": [{"type": "text", "text": "You said: I like figs."}], "author_name": "helper", "message_id": "run-182ee457-61b7-4355-bd93-85879f3256cf-1-message-0"}]',1.79589612012405729296e+09);
CREATE TABLE locks (name TEXT PRIMARY KEY);
INSERT INTO "locks" VALUES('audit');
INSERT INTO "locks" VALUES('sampling');
INSERT INTO "locks" VALUES('asks');
INSERT INTO "locks" VALUES('tasks');
CREATE TABLE memories (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, collection TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL,
    fields TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE sampling_use (id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT NOT NULL, principal TEXT NOT NULL, at FLOAT NOT NULL, gateway TEXT NOT NULL DEFAULT '');
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, at FLOAT NOT NULL);
INSERT INTO "schema_version" VALUES(1,1.79589611590793395037e+09);
INSERT INTO "schema_version" VALUES(2,1.79589611591979932785e+09);
INSERT INTO "schema_version" VALUES(3,1.79589611592096328731e+09);
INSERT INTO "schema_version" VALUES(4,1.79589611592997097969e+09);
INSERT INTO "schema_version" VALUES(5,1795896115.93053);
INSERT INTO "schema_version" VALUES(6,1.79589611593202519413e+09);
INSERT INTO "schema_version" VALUES(7,1.7958961159417896271e+09);
INSERT INTO "schema_version" VALUES(8,1.7958961159497859478e+09);
INSERT INTO "schema_version" VALUES(9,1.79589611595076847081e+09);
INSERT INTO "schema_version" VALUES(10,1.79589611595585560803e+09);
INSERT INTO "schema_version" VALUES(11,1.79589611595660138126e+09);
INSERT INTO "schema_version" VALUES(12,1.79589611596564602854e+09);
INSERT INTO "schema_version" VALUES(13,1.79589611596634387974e+09);
INSERT INTO "schema_version" VALUES(14,1.79589611596728467943e+09);
CREATE TABLE sessions (id TEXT PRIMARY KEY, principal TEXT NOT NULL, agent TEXT NOT NULL, state TEXT NOT NULL, turns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, created_at FLOAT NOT NULL, used_at FLOAT NOT NULL, expires_at FLOAT NOT NULL,
    holder TEXT NOT NULL, held_until FLOAT NOT NULL, gateway TEXT NOT NULL DEFAULT '');
INSERT INTO "sessions" VALUES('3d522cd67d7cd8325eb65ea662c9e472','local','helper','{"database": {}, "turn": "135ae1b88f08b3de2098e11ffb9ab6b6:/agent__helper:50da610dcbd3#1"}',2,586,1.79589611993147110942e+09,1.79589612010077190394e+09,2.11125612010077190407e+09,'5e98dc228ead78df',0.0,'bedb6dd5908d042e');
CREATE TABLE spent_approvals (id TEXT PRIMARY KEY, until FLOAT NOT NULL);
CREATE TABLE task_owners (id TEXT PRIMARY KEY, until FLOAT NOT NULL);
INSERT INTO "task_owners" VALUES('613d2ec5b04b4463db142e89',1.7958961516601812839e+09);
CREATE TABLE task_starts (scope TEXT NOT NULL, at FLOAT NOT NULL);
CREATE TABLE task_steps (task TEXT NOT NULL, key TEXT NOT NULL, is_done INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (task, key));
INSERT INTO "task_steps" VALUES('2daa200a82691bbe3960e1150becb6af','/workflow__flow:83f97c3798db#1',1,'null');
INSERT INTO "task_steps" VALUES('2daa200a82691bbe3960e1150becb6af','/workflow__flow:83f97c3798db#1/one@0.0/python#1',1,'null');
INSERT INTO "task_steps" VALUES('2daa200a82691bbe3960e1150becb6af','/workflow__flow:83f97c3798db#1/two@1.0/python#1',1,'null');
INSERT INTO "task_steps" VALUES('b46f492bcf91d554c351c5f56390f598','/workflow__flow:faa0acd1725a#1',0,'null');
INSERT INTO "task_steps" VALUES('b46f492bcf91d554c351c5f56390f598','/workflow__flow:faa0acd1725a#1/one@0.0/python#1',1,'{"value": "b1", "result": {"content": [{"type": "text", "text": "b1"}]}}');
INSERT INTO "task_steps" VALUES('b46f492bcf91d554c351c5f56390f598','kept:/workflow__flow:faa0acd1725a#1/checkpoint',1,'{"checkpoint": {"workflow_name": "flow", "graph_signature_hash": "f600f975b7bf2a3f8687be3e1973a39ca9c18c2750c0334a83a19eab90ebb42b", "checkpoint_id": "f50c51e6-9971-4c44-a57a-9568ef180329", "previous_checkpoint_id": null, "timestamp": "2026-11-28T20:02:21.586515+00:00", "messages": {"one": [{"$type": "gateway.workflows.messages:WorkflowMessage", "fields": {"data": "b1", "source_id": "one", "target_id": null, "type": {"$type": "gateway.workflows.messages:MessageType", "enum": "STANDARD"}, "original_request_info_event": null, "sent_in": {"$type": "tuple", "value": []}}}]}, "state": {"_workflow_run_kwargs": {}, "input": {"x": "b"}, "output:one": "b1"}, "pending_request_info_events": {}, "iteration_count": 0, "metadata": {}, "version": "1.0"}, "outputs": []}');
INSERT INTO "task_steps" VALUES('b46f492bcf91d554c351c5f56390f598','/workflow__flow:faa0acd1725a#1/two@1.0/python#1',0,'null');
CREATE TABLE tasks (id TEXT PRIMARY KEY, principal TEXT NOT NULL, tool TEXT NOT NULL, call TEXT NOT NULL, status TEXT NOT NULL,
    message TEXT NOT NULL, outcome TEXT NOT NULL, asked TEXT NOT NULL, ttl_seconds FLOAT NOT NULL, created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL, gone_at FLOAT NOT NULL, is_cancelled INTEGER NOT NULL, attempts INTEGER NOT NULL,
    owner TEXT NOT NULL, limits TEXT NOT NULL DEFAULT '[]', admitted_at FLOAT NOT NULL DEFAULT 0, request_key TEXT NOT NULL DEFAULT '', deaths INTEGER NOT NULL DEFAULT 0, gateway TEXT NOT NULL DEFAULT '');
INSERT INTO "tasks" VALUES('2daa200a82691bbe3960e1150becb6af','local','workflow__flow','{"arguments": {"x": "a"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}, "steps": 2}','completed','Completed','{"result": {"content": [{"type": "text", "text": "a12"}]}}','{}',31536000.0,1.7958961147142605782e+09,1.79589611676974225044e+09,1.82743211676974225046e+09,0,1,'613d2ec5b04b4463db142e89','[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79589611614533281331e+09,'',0,'bedb6dd5908d042e');
INSERT INTO "tasks" VALUES('b46f492bcf91d554c351c5f56390f598','local','workflow__flow','{"arguments": {"x": "b"}, "meta": {}, "name": "local user", "client": {"era": "modern", "protocol_version": "2026-07-28", "name": "", "version": "", "capabilities": {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, "session_id": null}, "steps": 2}','working','one started','{}','{}',31536000.0,1.79589614132390165334e+09,1.79589614149040699008e+09,0.0,0,1,'613d2ec5b04b4463db142e89','[{"scope": "caller:local", "running": 16, "perMinute": null}]',1.79589614144806528094e+09,'',0,'bedb6dd5908d042e');
CREATE INDEX audit_at ON audit (at);
CREATE INDEX sampling_use_key ON sampling_use (server, principal, at);
CREATE INDEX asks_principal ON asks (principal, state);
CREATE INDEX sessions_principal ON sessions (principal, used_at);
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX history_session ON history (owner, session, id);
CREATE INDEX memories_owner ON memories (owner, collection, id);
CREATE INDEX tasks_principal ON tasks (principal, created_at);
CREATE INDEX approval_rules_tool ON approval_rules (principal, source, name);
CREATE UNIQUE INDEX checkpoints_id ON checkpoints (owner, id);
CREATE INDEX checkpoints_workflow ON checkpoints (owner, workflow, at);
CREATE INDEX task_starts_at ON task_starts (at);
CREATE INDEX tasks_open ON tasks (gone_at, owner);
CREATE INDEX tasks_key ON tasks (principal, request_key);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',7);
INSERT INTO "sqlite_sequence" VALUES('history',2);
COMMIT;
