from gateway.agents.agui.hosting import (
    AgentFrameworkAgent as AgentFrameworkAgent,
    add_agent_framework_fastapi_endpoint as add_agent_framework_fastapi_endpoint,
)
from gateway.chat.agui_client import AGUIChatClient as AGUIChatClient
